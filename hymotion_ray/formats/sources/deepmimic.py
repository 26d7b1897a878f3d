"""Reads DeepMimic humanoid clips: JSON text with `Loop` and `Frames` of 44 numbers.

Knows the layout of a frame and the 15-body humanoid it is meant for. Does not know our skeleton
(`motion.retarget` maps onto it) and writes nothing.

A frame: seconds to the next frame; root position in metres; root quaternion; then, quaternions with
the real part first and hinge angles in radians, chest, neck, right hip, knee, ankle, shoulder,
elbow, and the same five of the left. Hinges turn about +Z. The character faces +X, Y is up and its
right is +Z; in the zero pose it stands with hanging arms.

Shape letters: F source frames, L frames at the wanted rate, J = 15 joints.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from hymotion_ray.errors import InputError
from hymotion_ray.motion.retarget import WorldFrames

Array = NDArray[np.float64]

NUM_COLUMNS = 44
MIN_FRAMES = 2
SWAY = math.radians(30)

# name, parent, offset from the parent in metres, first column, "ball" | "hinge" | "fixed"
_BODY: tuple[tuple[str, str | None, tuple[float, float, float], int, str], ...] = (
    ("root", None, (0.0, 0.0, 0.0), 4, "ball"),
    ("chest", "root", (0.0, 0.236, 0.0), 8, "ball"),
    ("neck", "chest", (0.0, 0.224, 0.0), 12, "ball"),
    ("right_hip", "root", (0.0, 0.0, 0.085), 16, "ball"),
    ("right_knee", "right_hip", (0.0, -0.422, 0.0), 20, "hinge"),
    ("right_ankle", "right_knee", (0.0, -0.410, 0.0), 21, "ball"),
    ("right_shoulder", "chest", (-0.024, 0.244, 0.183), 25, "ball"),
    ("right_elbow", "right_shoulder", (0.0, -0.275, 0.0), 29, "hinge"),
    ("right_wrist", "right_elbow", (0.0, -0.259, 0.0), -1, "fixed"),
    ("left_hip", "root", (0.0, 0.0, -0.085), 30, "ball"),
    ("left_knee", "left_hip", (0.0, -0.422, 0.0), 34, "hinge"),
    ("left_ankle", "left_knee", (0.0, -0.410, 0.0), 35, "ball"),
    ("left_shoulder", "chest", (-0.024, 0.244, -0.183), 39, "ball"),
    ("left_elbow", "left_shoulder", (0.0, -0.275, 0.0), 43, "hinge"),
    ("left_wrist", "left_elbow", (0.0, -0.259, 0.0), -1, "fixed"),
)
NAMES = tuple(row[0] for row in _BODY)
PARENTS = tuple(-1 if row[1] is None else NAMES.index(row[1]) for row in _BODY)
OFFSETS = np.array([row[2] for row in _BODY])

# +X to +Z, +Y stays, +Z (the right) to -X: a turn of -90 degrees about Y, so nothing is mirrored.
TO_CANONICAL = np.array([[0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])


@dataclass(frozen=True)
class DeepMimicClip:
    """One clip in its own axes (facing +X).

    times (F,) seconds; root (F,3) metres; local (F,J,4) quaternions, x y z w, of each joint against
    its parent; loops: whether the clip is a cycle.
    """

    times: Array
    root: Array
    local: Array
    loops: bool

    @property
    def duration(self) -> float:
        """Seconds from the first to the last frame."""
        return float(self.times[-1])

    def resample(self, fps: float) -> DeepMimicClip:
        """The clip at times 0, 1/fps, ...: slerp of rotations, straight lines between positions."""
        num_frames = max(MIN_FRAMES, math.floor(self.duration * fps + 1e-6) + 1)
        times = np.minimum(np.arange(num_frames) / fps, self.duration)
        root = np.stack([np.interp(times, self.times, self.root[:, i]) for i in range(3)], axis=1)
        local = np.stack(
            [
                Slerp(self.times, Rotation.from_quat(self.local[:, j]))(times).as_quat()
                for j in range(len(NAMES))
            ],
            axis=1,
        )
        return DeepMimicClip(np.arange(num_frames) / fps, root, local, self.loops)

    def repeated(self, count: int, *, blend: float, pause: float = 0.0) -> DeepMimicClip:
        """The clip `count` times, each continuing where and how the last one ended.

        In the last `blend` seconds of a cycle the pose eases into the first one, so that cycles
        join without a jump. A later cycle is moved by the travel and turned by the yaw that one
        cycle gains; a yaw below 30 degrees counts as a gait's sway and is closed like the pose, so
        that a walk stays straight. Between cycles the pose is held for `pause` seconds.
        """
        cycle, turn = self._closed(blend)
        origin, end = cycle.root[0] * (1, 0, 1), cycle.root[-1] * (1, 0, 1)
        skip = 0 if pause > 0 else 1  # without a pause the last frame is the next cycle's first
        times, roots, locals_ = [cycle.times], [cycle.root], [cycle.local]
        place, yaw = end, turn
        for number in range(1, count):
            local = cycle.local[skip:].copy()
            local[:, 0] = (yaw * Rotation.from_quat(local[:, 0])).as_quat()
            times.append(cycle.times[skip:] + number * (self.duration + pause))
            roots.append(yaw.apply(cycle.root[skip:] - origin) + place)
            locals_.append(local)
            place, yaw = yaw.apply(end - origin) + place, turn * yaw
        return DeepMimicClip(
            np.concatenate(times), np.concatenate(roots), np.concatenate(locals_), self.loops
        )

    def held(self, seconds: float) -> DeepMimicClip:
        """The clip with its last pose held for some seconds more."""
        times = np.append(self.times, self.duration + seconds)
        root, local = (np.concatenate([x, x[-1:]]) for x in (self.root, self.local))
        return DeepMimicClip(times, root, local, self.loops)

    def _closed(self, blend: float) -> tuple[DeepMimicClip, Rotation]:
        """The clip easing into its first pose, height and tilt; and the yaw that it still gains."""
        start, end = (Rotation.from_quat(self.local[i, 0]) for i in (0, -1))
        turn = _yaw(end * start.inv())
        if turn.magnitude() < SWAY:
            turn = Rotation.identity()
        part = np.clip((self.times - self.duration + blend) / max(blend, 1e-9), 0.0, 1.0)
        ease = part * part * (3 - 2 * part)
        root, local = self.root.copy(), self.local.copy()
        root[:, 1] += ease * (root[0, 1] - root[-1, 1])
        for j in range(len(NAMES)):
            first, last = (Rotation.from_quat(self.local[i, j]) for i in (0, -1))
            gap = (last.inv() * (turn * first if j == 0 else first)).as_rotvec()
            local[:, j] = (
                Rotation.from_quat(self.local[:, j]) * Rotation.from_rotvec(ease[:, None] * gap)
            ).as_quat()
        return DeepMimicClip(self.times, root, local, self.loops), turn

    def world_frames(self) -> WorldFrames:
        """World joint frames by forward kinematics, turned to face +Z (Y up, +X the left)."""
        rotations = np.empty((len(self.root), len(NAMES), 3, 3))
        positions = np.empty((len(self.root), len(NAMES), 3))
        for j, parent in enumerate(PARENTS):
            local = Rotation.from_quat(self.local[:, j]).as_matrix()
            if parent < 0:
                rotations[:, j], positions[:, j] = local, self.root
                continue
            rotations[:, j] = rotations[:, parent] @ local
            positions[:, j] = positions[:, parent] + rotations[:, parent] @ OFFSETS[j]
        return WorldFrames(
            names=NAMES,
            rest=rest_positions() @ TO_CANONICAL.T,
            rotations=TO_CANONICAL @ rotations @ TO_CANONICAL.T,
            positions=positions @ TO_CANONICAL.T,
        )


def rest_positions() -> Array:
    """(J,3) joint positions in metres of the zero pose, root at the origin, in the file's axes."""
    rest = np.zeros_like(OFFSETS)
    for j, parent in enumerate(PARENTS):
        rest[j] = OFFSETS[j] + (rest[parent] if parent >= 0 else 0.0)
    return rest


def read_deepmimic(path: str | Path) -> DeepMimicClip:
    """Read one clip; `InputError` names the file and what in it cannot be used."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        frames = np.array(content["Frames"], dtype=np.float64)
        loops = content.get("Loop", "none") == "wrap"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no DeepMimic clip ({error}); expected: JSON with 'Loop' and 'Frames', "
            f"rows of {NUM_COLUMNS} numbers"
        ) from error
    if frames.ndim != 2 or frames.shape[1] != NUM_COLUMNS or len(frames) < MIN_FRAMES:
        raise InputError(
            f"{path} has frames of shape {frames.shape}; expected: {MIN_FRAMES} or more rows of "
            f"{NUM_COLUMNS} numbers (the humanoid of 15 bodies)"
        )
    steps = frames[:-1, 0]
    if not np.isfinite(frames).all() or (steps <= 0).any():
        raise InputError(
            f"{path} holds numbers that are not finite or steps that are not positive; "
            "remove the damaged frames"
        )
    times = np.concatenate([[0.0], np.cumsum(steps)])
    return DeepMimicClip(times, frames[:, 1:4], _local_quaternions(frames, path), loops)


def _local_quaternions(frames: Array, path: Path) -> Array:
    local = np.zeros((len(frames), len(NAMES), 4))
    local[..., 3] = 1.0
    for j, (name, _, _, column, kind) in enumerate(_BODY):
        if kind == "hinge":
            local[:, j, 2] = np.sin(frames[:, column] / 2)
            local[:, j, 3] = np.cos(frames[:, column] / 2)
        elif kind == "ball":
            quat = frames[:, [column + 1, column + 2, column + 3, column]]
            norm = np.linalg.norm(quat, axis=1, keepdims=True)
            if (norm < 0.5).any():
                raise InputError(
                    f"{path} holds a {name} quaternion of length {norm.min():.3g}, not 1"
                )
            local[:, j] = quat / norm
    return local


def _yaw(rotation: Rotation) -> Rotation:
    """The turn about Y nearest to `rotation` (twist part of swing and twist)."""
    _, y, _, w = rotation.as_quat()
    return Rotation.from_quat([0.0, y, 0.0, w] if abs(y) + abs(w) > 1e-9 else [0.0, 0.0, 0.0, 1.0])
