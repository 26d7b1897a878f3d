"""AMASS files: SMPL+H and SMPL-X poses, and what else is stored with their keys.

Knows the keys of both releases, their frame rates under any name, and which files hold a shape and
no motion. Does not know captions: `amass_names` joins them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.arrays import NpzFile
from hymotion_ray.formats.sources.clip import SourceClip
from hymotion_ray.formats.sources.frame_rate import checked_rate
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.smpl_body import smpl_clip
from hymotion_ray.motion.poses import Up

RATE_KEYS = ("mocap_frame_rate", "mocap_framerate", "fps")
LICENCE = "AMASS: MPI licence, non-commercial research, no redistribution"
_WIDTHS = {66: "body", 72: "SMPL", 156: "SMPL-H", 165: "SMPL-X"}
_GENDERS = ("neutral", "male", "female")


def read_amass(file: SourceFile, arrays: NpzFile) -> Iterator[SourceClip]:
    """The one clip of a file with `poses` and `trans`."""
    poses = arrays.finite("poses", (None, None))
    if poses.shape[1] not in _WIDTHS:
        allowed = ", ".join(f"{width} ({body})" for width, body in _WIDTHS.items())
        raise SourceError(f"`poses` is {poses.shape[1]} wide; allowed: {allowed}", "bad_shape")
    trans = arrays.finite("trans", (len(poses), 3))
    is_released_tool = "Rh" in arrays and not any(key in arrays for key in RATE_KEYS)
    fps = 30.0 if is_released_tool else frame_rate(arrays)
    up = _up(arrays, is_released_tool)
    gender = arrays.scalar_text("gender")
    yield smpl_clip(
        file.name,
        poses,
        trans,
        fps,
        source="HY-Motion npz" if is_released_tool else "AMASS",
        up=up,
        licence="HY-Motion output" if is_released_tool else LICENCE,
        more={
            "body_model": _WIDTHS[poses.shape[1]],
            "gender": gender if gender in _GENDERS else "unknown",
        },
    )


def _up(arrays: NpzFile, is_released_tool: bool) -> Up:
    said = arrays.scalar_text("up_axis")
    if said not in ("", "y", "z"):
        raise SourceError(f"`up_axis` is {said[:20]!r}; allowed: y, z", "wrong_axis")
    if said == "y" or (not said and is_released_tool):
        return "y"
    return "z"


def frame_rate(arrays: NpzFile) -> float:
    """The rate under the first of the three names in use; `SourceError` (no_motion) without."""
    for key in RATE_KEYS:
        if key in arrays:
            return checked_rate(arrays.read(key), f"`{key}`")
    raise SourceError(f"no frame rate: none of {', '.join(RATE_KEYS)}", "no_motion")
