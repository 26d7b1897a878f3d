"""Clips as training takes them: cut at captions, 20 to 360 frames, facing +Z, at the origin.

Knows where a long take is cut and how a piece is placed. Does not know what captions say: it is
given their spans in seconds.

The rule. Each different span of the captions is a piece of its own, and what no caption speaks of
is left out; a take without captions is one piece. A piece longer than 360 frames becomes as many
windows as it needs, of nearly equal length, each with the captions of the piece. A window carries
only the captions of its own span: one for the whole take is not true of its parts. Pieces under 20
frames come too, marked, for the caller to count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hymotion_ray.errors import InputError
from hymotion_ray.motion.columns import (
    facing_turn,
    local_rotations,
    posed_joints,
    sole_columns,
    world_rotations,
)
from hymotion_ray.motion.motion import Meta, Motion
from hymotion_ray.motion.skeleton import PELVIS, Skeleton

MIN_FRAMES, MAX_FRAMES = 20, 360


@dataclass(frozen=True)
class Window:
    """Frames `start` to before `stop` of a take, and which spans (by number) it was cut for."""

    start: int
    stop: int
    spans: tuple[int, ...] = ()

    @property
    def num_frames(self) -> int:
        """Frames of the window."""
        return self.stop - self.start

    @property
    def is_short(self) -> bool:
        """Whether it has fewer frames than the model is trained on."""
        return self.num_frames < MIN_FRAMES


def windows(
    num_frames: int, spans: Sequence[tuple[float, float]], fps: float = 30.0
) -> Iterator[Window]:
    """The windows of a take of `num_frames` at `fps`; spans are (start, end) in seconds."""
    pieces: dict[tuple[int, int], list[int]] = {}
    for number, (first, last) in enumerate(spans):
        start = min(max(round(first * fps), 0), num_frames)
        stop = num_frames if math.isinf(last) else min(max(round(last * fps), start), num_frames)
        pieces.setdefault((start, stop), []).append(number)
    if not spans:
        pieces[0, num_frames] = []
    for (start, stop), numbers in sorted(pieces.items()):
        count = max(1, math.ceil((stop - start) / MAX_FRAMES))
        bounds = [start + round(k * (stop - start) / count) for k in range(count + 1)]
        for k in range(count):
            yield Window(bounds[k], bounds[k + 1], tuple(numbers))


def canonical_clip(motion: Motion, start: int = 0, stop: int | None = None) -> Motion:
    """Frames `start` to before `stop`, turned to face +Z at the first, started at x = z = 0, on the
    floor y = 0 by the soles of the motion's own skeleton.

    `InputError` for a window without frames or outside of the motion.
    """
    stop = motion.num_frames if stop is None else stop
    if not 0 <= start < stop <= motion.num_frames:
        raise InputError(
            f"frames {start} to {stop} of a motion of {motion.num_frames}; allowed: a window of at"
            " least one frame inside of it"
        )
    rot6d, transl = motion.rot6d[start:stop].numpy(), motion.transl[start:stop].numpy()
    return placed_clip(rot6d, transl, motion.skeleton, motion.fps, motion.meta)


def placed_clip(
    rot6d: NDArray[np.floating],
    transl: NDArray[np.floating],
    skeleton: Skeleton,
    fps: float,
    meta: Meta | None = None,
) -> Motion:
    """The motion of rotations (L, 22, 6) and translation (L, 3), placed as in `canonical_clip`.

    What `features.canonicalise` does, for one clip on a CPU; kinematics are run once for place,
    floor and joints.
    """
    local = local_rotations(rot6d)
    turn = facing_turn(local[PELVIS, :, :, 0])
    local[PELVIS] = np.einsum("ij,jkl->ikl", turn, local[PELVIS])
    turned = rot6d.astype(np.float32)
    root = rot6d[:, PELVIS].astype(np.float64).reshape(-1, 3, 2)
    turned[:, PELVIS] = (turn @ root).reshape(-1, 6)
    rest = skeleton.rest[PELVIS].astype(np.float64)
    place = (transl.astype(np.float64) + rest) @ turn.T - rest
    joints = posed_joints(world_rotations(local), skeleton)
    joints += place.T
    floor = sole_columns(joints, skeleton).min()
    origin = np.array([place[0, 0], floor, place[0, 2]])
    place -= origin
    joints -= origin[:, None]
    return Motion(
        torch.from_numpy(turned),
        torch.from_numpy(place.astype(np.float32)),
        torch.from_numpy(joints.astype(np.float32).transpose(2, 0, 1)),
        fps,
        skeleton,
        dict(meta or {}),
    )
