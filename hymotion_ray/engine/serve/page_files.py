"""The page and what it loads, from this package alone: nothing comes from another host.

Knows the files, their media types and the page's content policy. Knows no HTTP app.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from hymotion_ray.formats.html import fill_slots, viewer_asset

_PAGE = Path(__file__).resolve().parent / "page"
_TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
}
_VIEWER = frozenset(["three.bundle.min.js", "stage.js", "viewer.js", "viewer.css"])
_OWN = frozenset(["calls.js", "page.js", "page.css", "icon.svg"])
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
INDEX = "index.html"


@dataclass(frozen=True)
class PageFile:
    """One file: its bytes and the headers it is sent with."""

    content: bytes
    media_type: str

    @functools.cached_property
    def etag(self) -> str:
        """Changes when the content does."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    def headers(self) -> dict[str, str]:
        """Asked for anew each time, answered with 304 mostly; the policy that keeps it offline."""
        return {
            "ETag": self.etag,
            "Cache-Control": "no-cache",
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }


@functools.lru_cache(maxsize=32)
def page_file(name: str) -> PageFile | None:
    """The file of a name below `assets/`, or `INDEX`; None for any other name."""
    if name == INDEX:
        template = (_PAGE / "page.html").read_text(encoding="utf-8")
        text = fill_slots(template, {"bar": viewer_asset("bar.html")})
    elif name in _VIEWER:
        text = viewer_asset(name)
    elif name in _OWN:
        text = (_PAGE / name).read_text(encoding="utf-8")
    else:
        return None
    return PageFile(text.encode(), _TYPES[name.rpartition(".")[2]])
