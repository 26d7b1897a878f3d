"""Made-up clips for load tests: a reader whose files exist only as numbers. Ray-free.

Each clip is a body that squats, bows and swings its arms on the spot, by a few sines of its own; it
passes every gate and has no twin. Every number comes from (seed, file, clip), so that a stream of a
million clips is the same in every run and takes no disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hymotion_ray.formats.sources import (
    BodyPose,
    Caption,
    SourceClip,
    SourceFile,
    SourceReject,
)
from hymotion_ray.motion.skeleton import (
    ANKLES,
    HIPS,
    JOINT_NAMES,
    KNEES,
    NUM_BODY_JOINTS,
    PARENTS,
    PELVIS,
    generic_skeleton,
)

_UPPER = [
    JOINT_NAMES.index(name)
    for name in ("L_Shoulder", "R_Shoulder", "L_Elbow", "R_Elbow", "Spine1", "Spine3", "Neck")
]
_MIN_FRAMES, _MAX_FRAMES = 60, 360


@dataclass(frozen=True, kw_only=True)
class SyntheticReader:
    """`num_clips` clips in files of `clips_per_file`; the source's name is only a label."""

    num_clips: int
    clips_per_file: int = 1
    seed: int = 0

    def list(self, root: str) -> Iterator[SourceFile]:
        """The files, in order."""
        num_files = -(-self.num_clips // self.clips_per_file)
        for number in range(num_files):
            name = f"{number:07d}.synthetic"
            yield SourceFile(path=f"{root}/{name}", name=name, kind="synthetic", size=1000)

    def read(self, file: SourceFile) -> Iterator[SourceClip | SourceReject]:
        """The clips of one file."""
        number = int(file.name.partition(".")[0])
        first = number * self.clips_per_file
        for index in range(first, min(first + self.clips_per_file, self.num_clips)):
            yield synthetic_clip(np.random.default_rng([self.seed, index]), file.name, index)

    def describe(self) -> dict[str, str | None]:
        """Its seed decides what clips look like."""
        return {"synthetic": str(self.seed)}


def synthetic_clip(draw: np.random.Generator, file: str, index: int) -> SourceClip:
    """One clip at 30 frames a second, 2 to 12 s."""
    skeleton = generic_skeleton()
    num_frames = int(draw.integers(_MIN_FRAMES, _MAX_FRAMES + 1))
    times = np.arange(num_frames) / 30
    matrices = np.tile(np.eye(3), (num_frames, NUM_BODY_JOINTS, 1, 1))
    turns = Rotation.from_rotvec(_sines(draw, times, len(_UPPER), 0.25).reshape(-1, 3)).as_matrix()
    matrices[:, _UPPER] = turns.reshape(num_frames, len(_UPPER), 3, 3)
    bend = 0.35 + 0.3 * np.sin(2 * np.pi * draw.uniform(0.2, 0.6) * times + draw.uniform(0, 6.28))
    matrices[:, HIPS + ANKLES] = _about_x(-bend)[:, None]
    matrices[:, KNEES] = _about_x(2 * bend)[:, None]
    pelvis = np.zeros((num_frames, 3))
    # Thigh and shin are nearly as long as each other, so a squat keeps the feet where they are.
    pelvis[:, 1] = skeleton.ankle_height + skeleton.leg_length * np.cos(bend)
    body = BodyPose(
        rotations=matrices.astype(np.float32),
        pelvis=pelvis.astype(np.float32),
        leg_length=skeleton.leg_length,
    )
    return SourceClip(
        name=f"{file}#{index}",
        joint_names=JOINT_NAMES[:NUM_BODY_JOINTS],
        parents=PARENTS[:NUM_BODY_JOINTS],
        rotations=None,
        positions=(
            pelvis[:, None] + skeleton.rest[:NUM_BODY_JOINTS] - skeleton.rest[PELVIS]
        ).astype(np.float32),
        fps=30.0,
        body=body,
        captions=(Caption(text=f"a person moves in way {index}"),),
        provenance={"source": "synthetic", "licence": "CC0-1.0"},
    )


def _sines(
    draw: np.random.Generator, times: NDArray[np.float64], num_joints: int, size: float
) -> NDArray[np.float64]:
    """Three sines of random rate, size and phase (L, num_joints, 3) over `times` (L,) in seconds,
    for each axis of each joint.
    """
    shape = (3, num_joints, 3)
    rate, phase = draw.uniform(0.1, 1.2, shape), draw.uniform(0, 2 * np.pi, shape)
    share = draw.uniform(0.2, 1.0, shape) * size
    angle = 2 * np.pi * times[:, None, None, None] * rate + phase
    return (share * np.sin(angle)).sum(axis=1)


def _about_x(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotations (L, 3, 3) about +X by angles (L,) in radians."""
    matrix = np.tile(np.eye(3), (len(angle), 1, 1))
    matrix[:, 1, 1] = matrix[:, 2, 2] = np.cos(angle)
    matrix[:, 2, 1] = np.sin(angle)
    matrix[:, 1, 2] = -matrix[:, 2, 1]
    return matrix
