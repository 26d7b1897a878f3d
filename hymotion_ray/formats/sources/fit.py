"""From a `SourceClip` to a `Motion` of our skeleton at 30 frames a second.

Knows which way a clip goes: rotations of the SMPL family are taken over, other rigs are retargeted.
The maths is `motion.retarget`'s. Does not know any file format.
"""

from __future__ import annotations

import numpy as np
import torch

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.clip import BodyPose, SourceClip
from hymotion_ray.formats.sources.joint_names import find_humanoid
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.retarget import FitReport, retarget_humanoid
from hymotion_ray.motion.rotations import matrix_to_rot6d, resample
from hymotion_ray.motion.skeleton import PELVIS, Skeleton

FPS = 30.0


def to_motion(clip: SourceClip, skeleton: Skeleton, fps: float = FPS) -> tuple[Motion, FitReport]:
    """The clip on `skeleton` at `fps`, resampled by time, and how well it fits.

    Retargeted clips stand on the floor y = 0; SMPL-family clips stay at the height that their file
    says (`motion.canonical` puts every cut clip on the floor). `SourceError` (positions_only) for a
    clip without rotations.
    """
    if clip.body is not None:
        motion, report = _of_body(clip.body, skeleton, clip.fps)
    elif clip.rotations is None:
        raise SourceError(
            "only joint positions are known, and twists of limbs cannot be read off them; give the"
            " file that they were made from",
            "positions_only",
        )
    else:
        humanoid = find_humanoid(clip.joint_names, clip.parents)
        motion, report = retarget_humanoid(
            clip.rotations.astype(np.float64),
            clip.positions.astype(np.float64),
            humanoid,
            skeleton,
            clip.fps,
        )
    if clip.fps == fps:
        return motion, report
    rotations, transl = resample(
        motion.local_rotations().double(), motion.transl.double(), clip.fps, fps
    )
    resampled = Motion.from_rotations(matrix_to_rot6d(rotations), transl, skeleton, fps)
    return resampled, report


def _of_body(body: BodyPose, skeleton: Skeleton, fps: float) -> tuple[Motion, FitReport]:
    """Rotations as they are; the pelvis moves by the ratio of leg lengths."""
    scale = skeleton.leg_length / body.leg_length
    pelvis = torch.from_numpy(body.pelvis.astype(np.float64)) * scale
    transl = pelvis - torch.from_numpy(skeleton.rest[PELVIS].astype(np.float64))
    rot6d = matrix_to_rot6d(torch.from_numpy(body.rotations))
    report = FitReport(
        mean_error_m=0.0,
        max_error_m=0.0,
        mean_angle_deg=0.0,
        scale=scale,
        leg_length=body.leg_length,
    )
    return Motion.from_rotations(rot6d, transl, skeleton, fps), report
