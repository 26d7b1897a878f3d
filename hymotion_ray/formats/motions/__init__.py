"""Motion files by suffix: one table of formats, each to and from bytes.

Knows which formats there are and which of them can be read back. Does not know what they look like
inside, nor pages, films and pictures: those show several motions and come from `html` and `video`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import torch

from hymotion_ray.config.fields import shown
from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.atomic import read_bytes, write_bytes
from hymotion_ray.formats.motions.bvh import read_bvh, write_bvh
from hymotion_ray.formats.motions.fbx import write_fbx
from hymotion_ray.formats.motions.glb import read_glb, write_glb
from hymotion_ray.formats.motions.npz import Axis, read_npz, write_npz
from hymotion_ray.formats.motions.usd import write_usda
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, generic_skeleton

MAX_INPUT_BYTES = 2 << 30
_PREVIEWS = (".html", ".mp4", ".png")


@dataclass(frozen=True)
class MotionFormat:
    """One format: its suffix without the dot, its writer, its reader (None: write only)."""

    name: str
    write: Callable[[Motion], bytes]
    read: Callable[[bytes, str], Motion] | None
    about: str


FORMATS: dict[str, MotionFormat] = {
    entry.name: entry
    for entry in (
        MotionFormat(
            "npz", write_npz, read_npz, "SMPL-H arrays, self-describing; AMASS is read too"
        ),
        MotionFormat("bvh", write_bvh, read_bvh, "skeleton and Euler angles, centimetres"),
        MotionFormat("glb", write_glb, read_glb, "skinned and animated figure, glTF 2.0"),
        MotionFormat("fbx", write_fbx, None, "skinned and animated figure, binary FBX 7.4"),
        MotionFormat("usda", write_usda, None, "UsdSkel, needs the extra [export]"),
    )
}
"""The formats by name, which is also the suffix."""


def encode_motion(motion: Motion, name: str, *, axis: Axis = "y-up") -> bytes:
    """The bytes of a file of format `name`, the same for the same motion.

    axis: of the arrays in npz; the other formats say or fix their own axes and ignore it.
    `OutputError` for an unknown format or a motion that is not finite, `MissingDependencyError`
    where its library is missing.
    """
    entry = FORMATS.get(name.lower())
    if entry is None:
        raise OutputError(f"unknown motion format {name!r}; allowed: {', '.join(FORMATS)}")
    if not (motion.rot6d.isfinite().all() and motion.transl.isfinite().all()):
        raise OutputError("the motion holds NaN or infinite numbers; it is not written")
    if entry.name == "npz":
        return write_npz(motion, axis=axis)
    return entry.write(motion)


def check_formats(names: Sequence[str]) -> None:
    """Raise what `encode_motion` would raise for a format that is unknown or lacks its library."""
    skeleton = generic_skeleton()
    upright = torch.tensor([1.0, 0, 0, 1, 0, 0]).repeat(2, NUM_BODY_JOINTS, 1)
    motion = Motion.from_rotations(upright, torch.zeros(2, 3), skeleton, 30)
    for name in names:
        encode_motion(motion, name)


def decode_motion(content: bytes, name: str, source: str = "") -> Motion:
    """The motion in the bytes of a file of format `name`; `source` is what messages call the file.

    `InputError` for an unknown format, one that is only written, or damaged or hostile content.
    """
    label = source or name
    read = _require_readable(name.lower(), label)
    try:
        return read(content, label)
    except InputError as error:
        if str(error).startswith(label):
            raise
        raise InputError(f"{label}: {error}") from error


def save_motion(motion: Motion, path: str | os.PathLike[str], *, axis: Axis = "y-up") -> None:
    """Write a motion to a path or URL in the format of its suffix (any case), whole or not at all.

    axis: see `encode_motion`. `OutputError` for an unknown suffix or when writing fails.
    """
    if not isinstance(motion, Motion):
        raise InputError(
            f"motion is {shown(motion)}; allowed: one Motion, as load_motion and decode give"
        )
    name = _suffix(path)
    if f".{name}" in _PREVIEWS:
        raise OutputError(
            f"{os.fspath(path)}: {name} shows motions and cannot be read back; make it with"
            " `hymotion-ray preview`, write_html, write_mp4 or write_png"
        )
    if name not in FORMATS:
        raise OutputError(
            f"{os.fspath(path)}: unknown suffix {('.' + name) if name else 'none'!r}; allowed:"
            f" {', '.join('.' + known for known in FORMATS)}"
        )
    write_bytes(path, encode_motion(motion, name, axis=axis))


def load_motion(path: str | os.PathLike[str]) -> Motion:
    """Read a motion from a path or URL by its suffix (any case).

    npz: ours, the released tool's and AMASS's; bvh and glb: ours.
    `InputError` for a missing file, an unknown or write-only suffix, damaged or hostile content.
    """
    name = _suffix(path)
    source = os.fspath(path)
    _require_readable(name, source)
    if "://" not in source:
        if not os.path.isfile(source):
            raise InputError(f"{source}: no such file")
        if (size := os.path.getsize(source)) > MAX_INPUT_BYTES:
            raise InputError(f"{source}: {size} bytes; at most {MAX_INPUT_BYTES} are read")
    try:
        content = read_bytes(path)
    except OutputError as cause:
        raise InputError(str(cause)) from cause
    return decode_motion(content, name, source)


def is_motion_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path or URL is a motion file by its suffix, and no folder of that name."""
    return _suffix(path) in FORMATS and not os.path.isdir(path)


def _require_readable(name: str, source: str) -> Callable[[bytes, str], Motion]:
    entry = FORMATS.get(name)
    if entry is not None and entry.read is not None:
        return entry.read
    readable = ", ".join(f.name for f in FORMATS.values() if f.read is not None)
    problem = "is only written, not read" if entry else "is not a known motion format"
    raise InputError(f"{source}: {name or 'a file without suffix'} {problem}; readable: {readable}")


def _suffix(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path is {shown(path)}; allowed: a path or URL, as text or Path")
    return PurePosixPath(os.fspath(path)).suffix.lower().removeprefix(".")
