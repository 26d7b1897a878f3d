"""One self-contained HTML page that plays motions side by side: three.js, viewer and data inline.

Knows how motions are packed for the page and how text is kept from breaking out of it. The page
asks the network for nothing, and its content policy forbids it to. Does not know what the page
looks like: that is `assets/viewer/`.

Shape letters: L frames, V vertices, F faces, J joints.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.formats.atomic import write_bytes
from hymotion_ray.formats.figures.figure import Figure
from hymotion_ray.formats.figures.mannequin import figure_of
from hymotion_ray.formats.figures.tracks import rotation_tracks
from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, PARENTS, PELVIS, Skeleton

_ASSETS = Path(__file__).resolve().parent.parent / "assets" / "viewer"
_VERTEX_UNIT = 1e-4  # metres a step: a tenth of a millimetre, up to 3.2 m
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
    " img-src data: blob:; connect-src CONNECT; base-uri 'none'; form-action 'none'"
)
_SLOT = re.compile(r"<!--slot:(\w+)-->")


def write_html(
    motions: Sequence[Motion],
    path: str | os.PathLike[str],
    *,
    title: str = "HY-Motion clips",
    mesh: BodyMesh | None = None,
) -> None:
    """Write the page to a path or URL; no motions give a page that says so.

    Under each clip stand its prompt, seed, length, model and licence as far as `motion.meta` has
    them. mesh: the model's body instead of the mannequin.
    """
    page = html_page(viewer_data(motions, mesh=mesh), title=title)
    write_bytes(path, page.encode("utf-8"))


def html_page(data: Mapping[str, Any], *, title: str, connect: bool = False) -> str:
    """The page's text around `data` from `viewer_data`.

    connect: let the page's scripts talk to the server that it came from; the saved page may not.
    """
    policy = _POLICY.replace("CONNECT", "'self'" if connect else "'none'")
    slots = {
        "title": escape(title),
        "policy": policy,
        "data": _script_json(data),
        "style": viewer_asset("viewer.css"),
        "bar": viewer_asset("bar.html"),
        "bundle": viewer_asset("three.bundle.min.js"),
        "viewer": viewer_asset("stage.js") + viewer_asset("viewer.js"),
    }
    return fill_slots(viewer_asset("page.html"), slots)


def fill_slots(template: str, slots: Mapping[str, str]) -> str:
    """A template with each `<!--slot:NAME-->` filled; text that looks like a slot stays text."""
    return _SLOT.sub(lambda match: slots[match.group(1)], template)


def viewer_data(motions: Sequence[Motion], *, mesh: BodyMesh | None = None) -> dict[str, Any]:
    """What the viewer plays, as JSON-able data; `window.hymotionViewer.add` takes it too.

    Arrays are base64 of little-endian bytes: quats i2 (L,22,4) in 1/32767, x, y, z, w; root f4
    (L,3) pelvis in the world; of each distinct figure, vertices i2 (V,3) in `unit` metres and its
    skin. About 28 kB for a 5 s clip before base64.
    """
    figures: list[dict[str, Any]] = []
    bodies: list[Skeleton] = []
    clips = []
    for motion in motions:
        known = next((k for k, body in enumerate(bodies) if body.same_as(motion.skeleton)), None)
        if known is None:
            known = len(bodies)
            bodies.append(motion.skeleton)
            figures.append(_figure_data(figure_of(motion.skeleton, mesh), motion.skeleton))
        clips.append({"figure": known, **_clip_data(motion)})
    return {
        "schema": 1,
        "parents": list(PARENTS[:NUM_BODY_JOINTS]),
        "figures": figures,
        "clips": clips,
    }


def _clip_data(motion: Motion) -> dict[str, Any]:
    return {
        "fps": motion.fps,
        "num_frames": motion.num_frames,
        "meta": {key: _shown(value) for key, value in motion.meta.items()},
        "quats": _base64(np.round(rotation_tracks(motion) * 32767), "<i2"),
        "root": _base64(motion.joints[:, PELVIS].numpy(), "<f4"),
    }


def _shown(value: str | int | float) -> str | int | float:
    """A value as JavaScript keeps it: numbers beyond 53 bits become text."""
    is_safe = isinstance(value, str) or abs(value) <= 2**53 - 1
    return value if is_safe else str(value)


def _figure_data(figure: Figure, skeleton: Skeleton) -> dict[str, Any]:
    wide = len(figure.vertices) > 65535
    return {
        "unit": _VERTEX_UNIT,
        "rest": _base64(skeleton.rest[:NUM_BODY_JOINTS], "<f4"),
        "vertices": _base64(np.round(figure.vertices / _VERTEX_UNIT).clip(-32768, 32767), "<i2"),
        "faces": _base64(figure.faces, "<u4" if wide else "<u2"),
        "skin_indices": _base64(figure.skin_indices, "u1"),
        "skin_weights": _base64(np.round(figure.skin_weights * 255), "u1"),
        "tones": _base64(figure.tones, "u1"),
    }


def _base64(array: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode("ascii")


def _script_json(data: Mapping[str, Any]) -> str:
    """JSON that cannot end its script element or open a comment, whatever the texts in it say."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    unsafe = {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
    }
    return re.sub("[<>&\u2028\u2029]", lambda match: unsafe[match.group()], text)


def viewer_asset(name: str) -> str:
    """The text of a file of the viewer: its styles, scripts or a piece of its page."""
    return (_ASSETS / name).read_text(encoding="utf-8")
