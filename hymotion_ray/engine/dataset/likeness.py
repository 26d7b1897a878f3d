"""When two clips are the same motion, or each other in a mirror. Ray-free.

A clip's name here is a hash of its number of frames and of 16 of its poses, joints rounded to a
centimetre: what two copies of one take share even when they came through different files, and no
two takes do. Copies that differ by more than rounding (another retargeting) have other names.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from hymotion_ray.motion.features import mirror
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, Skeleton

_NUM_POSES = 16
_METRES = 0.01


def likeness(motion: Motion) -> tuple[str, str]:
    """Names (32 digits) of a canonical clip and of its mirror image: equal for equal motions."""
    last = motion.num_frames - 1
    frames = torch.linspace(0, last, _NUM_POSES, dtype=torch.float64).round().long()
    rot6d, transl = motion.rot6d[frames].double(), motion.transl[frames].double()
    own = _name(rot6d, transl, motion.num_frames, motion.skeleton)
    mirrored = mirror(rot6d, transl, motion.skeleton)
    return own, _name(*mirrored, motion.num_frames, motion.skeleton)


def _name(rot6d: Tensor, transl: Tensor, num_frames: int, skeleton: Skeleton) -> str:
    _, posed = forward_kinematics(rot6d_to_matrix(rot6d), skeleton)
    joints = posed[:, :NUM_BODY_JOINTS] + transl[:, None]
    steps = (joints / _METRES).round().to(torch.int32).numpy().astype("<i4")
    return hashlib.sha256(num_frames.to_bytes(4, "little") + steps.tobytes()).hexdigest()[:32]
