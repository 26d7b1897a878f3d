"""From a `SourceClip` to a `Motion` of our skeleton at 30 frames a second.

Knows which way a clip goes: rotations of the SMPL family are taken over, other rigs are retargeted.
The maths is `motion.retarget`'s. Does not know any file format.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.clip import BodyPose, Floats, SourceClip, float32
from hymotion_ray.formats.sources.joint_names import find_humanoid
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.retarget import FitReport, retarget_humanoid
from hymotion_ray.motion.rotations import matrix_to_rot6d, resample, rot6d_to_matrix
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, PELVIS, Skeleton

FPS = 30.0
# A first frame that is this much further from the second than any of the next few steps, and this
# many leg lengths away, is the pose in which the rig was built and no motion (cgspeed's CMU files).
_JUMP, _JUMP_LEGS, _STEPS = 8.0, 0.1, 6


def to_motion(clip: SourceClip, skeleton: Skeleton, fps: float = FPS) -> tuple[Motion, FitReport]:
    """The clip on `skeleton` at `fps`, resampled by time, and how well it fits.

    A first frame that is the rig's own pose, apart from the motion, is dropped and counted in the
    report. Retargeted clips stand on the floor y = 0; SMPL-family clips stay at the height that
    their file says (`motion.canonical` puts every cut clip on the floor). `SourceError`
    (positions_only) for a clip without rotations.
    """
    rot6d, transl, report = to_rotations(clip, skeleton, fps)
    motion = Motion.from_rotations(
        torch.from_numpy(rot6d), torch.from_numpy(transl), skeleton, float(fps)
    )
    return motion, report


def to_rotations(
    clip: SourceClip, skeleton: Skeleton, fps: float = FPS
) -> tuple[Floats, Floats, FitReport]:
    """What `to_motion` makes a motion of: rotations (L, 22, 6) and translation (L, 3)."""
    if clip.body is not None:
        rot6d, transl, report = _of_body(clip.body, skeleton)
    elif clip.rotations is None:
        raise SourceError(
            "only joint positions are known, and twists of limbs cannot be read off them; give the"
            " file that they were made from",
            "positions_only",
        )
    else:
        humanoid = find_humanoid(clip.joint_names, clip.parents)
        positions = clip.positions.astype(np.float64)
        first = int(_starts_apart(positions, humanoid.leg_length(positions)))
        motion, report = retarget_humanoid(
            clip.rotations[first:].astype(np.float64),
            positions[first:],
            humanoid,
            skeleton,
            clip.fps,
        )
        report = dataclasses.replace(report, dropped_frames=first)
        rot6d, transl = motion.rot6d.numpy(), motion.transl.numpy()
    if clip.fps == fps:
        return rot6d, transl, report
    local = rot6d_to_matrix(torch.from_numpy(rot6d)).double()
    rotations, moved = resample(local, torch.from_numpy(transl).double(), clip.fps, fps)
    return matrix_to_rot6d(rotations).float().numpy(), moved.float().numpy(), report


def _starts_apart(positions: NDArray[np.float64], leg_length: float) -> bool:
    """Whether the first of the frames (L,J,3) is a pose by itself."""
    steps = np.linalg.norm(np.diff(positions[: _STEPS + 1], axis=0), axis=-1).mean(axis=1)
    if len(steps) < 2:
        return False
    return bool(steps[0] > _JUMP_LEGS * leg_length and steps[0] > _JUMP * steps[1:].max())


def _of_body(body: BodyPose, skeleton: Skeleton) -> tuple[Floats, Floats, FitReport]:
    """Rotations as they are; the pelvis moves by the ratio of leg lengths."""
    scale = skeleton.leg_length / body.leg_length
    transl = body.pelvis.astype(np.float64) * scale - skeleton.rest[PELVIS].astype(np.float64)
    rot6d: Floats = body.rotations[..., :2].reshape(len(transl), NUM_BODY_JOINTS, 6)
    report = FitReport(
        mean_error_m=0.0,
        max_error_m=0.0,
        mean_angle_deg=0.0,
        scale=scale,
        leg_length=body.leg_length,
    )
    return rot6d, float32(transl), report
