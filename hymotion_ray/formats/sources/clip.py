"""What a motion file holds before retargeting: one clip, its captions, or why it was refused.

Knows the shapes and units that every reader delivers. Does not know any file format, nor our
skeleton.

Shape letters: L frames, J source joints, 22 the body joints that SMPL, SMPL-H and SMPL-X share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.errors import SourceError

MAX_JOINT_FRAMES = 8_000_000
"""Frames times joints of one clip: about 3 GB while it is read. Longer takes must be split."""

Floats = NDArray[np.float32]
Provenance = dict[str, str | float | int | bool]

__all__ = [
    "MAX_JOINT_FRAMES",
    "BodyPose",
    "Caption",
    "SourceClip",
    "SourceError",
    "SourceReject",
    "check_size",
    "float32",
]


def float32(array: NDArray[np.float64]) -> Floats:
    """The array as float32; what does not fit becomes infinite, for the reader to refuse."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def check_size(num_frames: int, num_joints: int) -> None:
    """`SourceError` (too_large) for a clip that would not fit into memory."""
    if num_frames * num_joints > MAX_JOINT_FRAMES:
        raise SourceError(
            f"{num_frames} frames of {num_joints} joints; at most {MAX_JOINT_FRAMES} together,"
            " split the file",
            "too_large",
        )


@dataclass(frozen=True, kw_only=True)
class Caption:
    """What is said of a part of a clip."""

    text: str
    start: float = 0.0
    """Seconds from the start of the clip."""
    end: float = math.inf
    """Seconds; infinity until a reader knows the clip's length, then at most that."""
    mirrored: bool = False
    """Whether the text tells what the mirrored clip shows (left and right swapped)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BodyPose:
    """A motion of the SMPL family: its rotations are ours and need no retargeting.

    rotations (L,22,3,3) float32 against the parent, Y up, +Z the front of the body at rest; pelvis
    (L,3) float32 world position in metres; leg_length: thigh plus shin of the body in metres;
    rest: (52,3) where the file brings its own skeleton, else None.
    """

    rotations: Floats
    pelvis: Floats
    leg_length: float
    rest: Floats | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceClip:
    """One motion as a file holds it, in metres and Y up.

    `rotations` are world rotations of joint frames that are all the identity in the rig's rest
    pose; how axis and unit were found stands in `provenance` (source, licence, up_axis, unit_m,
    leg_length, warnings ...). The joints of a `body` clip are those of the generic skeleton, sized
    to the body's legs: SMPL's own joints are not free to ship.
    """

    name: str
    """Unique within the source: relative path, then `#` and the clip's name or the person."""
    joint_names: tuple[str, ...]
    parents: tuple[int, ...]
    """-1 for a root; a parent stands before its children."""
    rotations: Floats | None
    """(L,J,3,3), None when the file knows positions only."""
    positions: Floats
    """(L,J,3) metres."""
    fps: float
    body: BodyPose | None = None
    captions: tuple[Caption, ...] = ()
    provenance: Provenance

    @property
    def num_frames(self) -> int:
        """Frames of the clip."""
        return len(self.positions)

    @property
    def duration(self) -> float:
        """Seconds from the first frame to the last."""
        return (self.num_frames - 1) / self.fps


@dataclass(frozen=True, kw_only=True)
class SourceReject:
    """A file or clip that was not read, and why."""

    name: str
    """As `SourceClip.name`."""
    code: str
    """A short stable word for tables: see `docs/ingest-sources.md`."""
    message: str
    is_motion: bool = True
    """False for what never claimed to be one: a caption file, a skeleton, a text page."""
