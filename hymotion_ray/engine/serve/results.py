"""A job's clips as what a client downloads: files, one archive of files, one document, one page.

Knows formats, media types, names and tags of content. Knows no HTTP app and no job.

One clip in a file format is that file. Several clips are a ZIP archive with one file a clip, named
as `render` names them: every language and desktop opens one, each clip can be asked for alone
(`clip=K`), and unlike multipart a browser can save it. `json` and `html` hold all clips at once.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hymotion_ray.errors import OutputError
from hymotion_ray.formats.figures.tracks import rotation_tracks
from hymotion_ray.formats.html import html_page, viewer_data
from hymotion_ray.formats.motions import decode_motion, encode_motion
from hymotion_ray.formats.names import safe_stem
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import JOINT_NAMES, NUM_BODY_JOINTS, PARENTS

MEDIA_TYPES = {
    "npz": "application/octet-stream",
    "glb": "model/gltf-binary",
    "bvh": "text/plain; charset=utf-8",
    "json": "application/json",
    "html": "text/html; charset=utf-8",
    "viewer": "application/json",
}
"""The formats of a result; `viewer` is what the page's player takes (`formats.html`)."""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # one archive of the same clips has the same bytes


@dataclass(frozen=True)
class Result:
    """Bytes to send, and what they are."""

    content: bytes
    media_type: str
    filename: str

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the content."""
        return hashlib.sha256(self.content).digest()

    def headers(self) -> dict[str, str]:
        """`ETag`, `Repr-Digest` (RFC 9530) and the name to save under."""
        return {
            "ETag": f'"{self.digest.hex()}"',
            "Repr-Digest": f"sha-256=:{base64.b64encode(self.digest).decode()}:",
            "Content-Disposition": f'attachment; filename="{self.filename}"',
            "X-Content-Type-Options": "nosniff",
        }

    def matches(self, if_none_match: str | None) -> bool:
        """Whether an `If-None-Match` header names this content, so that 304 is the answer."""
        if not if_none_match:
            return False
        tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
        return "*" in tags or f'"{self.digest.hex()}"' in tags


@dataclass(frozen=True)
class Clip:
    """One clip as the jobs folder keeps it: its seed and its npz file."""

    seed: int
    npz: bytes = field(repr=False)

    def motion(self) -> Motion:
        """The clip read back."""
        return decode_motion(self.npz, "npz", f"the clip of seed {self.seed}")


def encode_result(clips: Sequence[Clip], name: str, job_id: str) -> Result:
    """Clips of a job in format `name` of `MEDIA_TYPES`, the same bytes for the same clips.

    npz files leave as they are kept, so that they are those that `render` writes. `OutputError` for
    an unknown format or no clips, `InputError` for a damaged clip.
    """
    if name not in MEDIA_TYPES:
        raise OutputError(f"unknown result format {name!r}; allowed: {', '.join(MEDIA_TYPES)}")
    if not clips:
        raise OutputError(f"the job {job_id} has no clips")
    stem = safe_stem(job_id, 0).removesuffix("_s0")
    if name in ("json", "viewer", "html"):
        motions = [clip.motion() for clip in clips]
        suffix = {"viewer": "viewer.json"}.get(name, name)
        return Result(_document(motions, name), MEDIA_TYPES[name], f"{stem}.{suffix}")
    names = _file_names(clips, job_id, name)
    if len(clips) == 1:
        return Result(_file(clips[0], name), MEDIA_TYPES[name], names[0])
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        for filename, clip in zip(names, clips, strict=True):
            entry = zipfile.ZipInfo(filename, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED if name == "bvh" else zipfile.ZIP_STORED
            packed.writestr(entry, _file(clip, name), compresslevel=6)
    return Result(archive.getvalue(), "application/zip", f"{stem}.{name}.zip")


def _file(clip: Clip, name: str) -> bytes:
    return clip.npz if name == "npz" else encode_motion(clip.motion(), name)


def _document(motions: Sequence[Motion], name: str) -> bytes:
    if name == "html":
        title = str(motions[0].meta.get("prompt", "")) or "HY-Motion clips"
        return html_page(viewer_data(motions), title=title).encode()
    document = motions_document(motions) if name == "json" else viewer_data(motions)
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


def motions_document(motions: Sequence[Motion]) -> dict[str, Any]:
    """Clips as a JSON document that needs no library to be read.

    A clip: `fps`, `num_frames`, `meta`, `root` (L,3) pelvis in the world, metres, Y up; `rotations`
    (L,22,4) local, x y z w; `joints` (L,22,3) in the world. Rounded to 1e-5.
    """
    return {
        "schema": 1,
        "joint_names": list(JOINT_NAMES[:NUM_BODY_JOINTS]),
        "parents": [int(parent) for parent in PARENTS[:NUM_BODY_JOINTS]],
        "up_axis": "y",
        "unit": "metre",
        "clips": [
            {
                "fps": motion.fps,
                "num_frames": motion.num_frames,
                "meta": dict(motion.meta),
                "root": _rounded(motion.joints[:, 0].numpy()),
                "rotations": _rounded(rotation_tracks(motion)),
                "joints": _rounded(motion.joints[:, :NUM_BODY_JOINTS].numpy()),
            }
            for motion in motions
        ],
    }


def _file_names(clips: Sequence[Clip], job_id: str, suffix: str) -> list[str]:
    names: list[str] = []
    for number, clip in enumerate(clips):
        name = f"{safe_stem(job_id, clip.seed)}.{suffix}"
        if name in names:  # a seed asked for twice
            name = f"{safe_stem(f'{job_id}-{number}', clip.seed)}.{suffix}"
        names.append(name)
    return names


def _rounded(array: np.ndarray) -> list[Any]:
    values: list[Any] = np.round(array.astype(np.float64), 5).tolist()
    return values
