"""When two clips are the same motion, or each other in a mirror. Ray-free.

A clip's name here is a hash of its number of frames and of 16 of its poses, joints rounded to a
centimetre: what two copies of one take share even when they came through different files, and no
two takes do. Copies that differ by more than rounding (another retargeting) have other names.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.motion.columns import (
    local_rotations,
    mirrored_rotations,
    posed_joints,
    world_rotations,
)
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, PELVIS

_NUM_POSES = 16
_METRES = 0.01


def likeness(motion: Motion) -> tuple[str, str]:
    """Names (32 digits) of a canonical clip and of its mirror image: equal for equal motions."""
    frames = np.linspace(0, motion.num_frames - 1, _NUM_POSES).round().astype(np.int64)
    local = local_rotations(motion.rot6d.numpy()[frames])
    transl = motion.transl.numpy()[frames].T.astype(np.float64)
    rest_x = float(motion.skeleton.rest[PELVIS, 0])
    mirrored = np.stack([-transl[0] - 2 * rest_x, transl[1], transl[2]])
    # Both in one walk down the tree: so few frames cost by the call.
    world = world_rotations(np.concatenate([local, mirrored_rotations(local)], axis=-1))
    joints = posed_joints(world, motion.skeleton, NUM_BODY_JOINTS)
    joints += np.concatenate([transl, mirrored], axis=1)
    steps = np.round(joints / _METRES).astype("<i4").transpose(2, 0, 1)
    own, other = (
        _name(poses, motion.num_frames) for poses in (steps[:_NUM_POSES], steps[_NUM_POSES:])
    )
    return own, other


def _name(steps: NDArray[np.int32], num_frames: int) -> str:
    """steps: (16, 22, 3) joints in centimetres."""
    content = num_frames.to_bytes(4, "little") + steps.tobytes()
    return hashlib.sha256(content).hexdigest()[:32]
