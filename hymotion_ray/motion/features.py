"""The 201 numbers of a frame: translation, 22 rotations, 22 positions; and clips moved or mirrored.

It knows their layout and the canonical frame (facing +Z at the start, floor at y = 0). It knows no
statistics: normalising belongs to whoever holds mean and std.

Layout: 0:3 translation, 3:135 rot6d of 22 joints (the pelvis in world axes, the others local),
135:201 positions of 22 joints in world axes minus the pelvis, whose own triplet comes first and is
zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hymotion_ray.errors import InputError
from hymotion_ray.motion.ground import joint_floor
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.rotations import (
    heading,
    rot6d_to_matrix,
    yaw_matrix,
)
from hymotion_ray.motion.skeleton import MIRROR_PAIRS, NUM_BODY_JOINTS, PELVIS, Skeleton

NUM_FEATURES = 201
_POSITIONS = 3 + 6 * NUM_BODY_JOINTS

# Mirroring x: R becomes M R M with M = diag(-1, 1, 1), which flips these of the six numbers.
_MIRROR_SIGNS = (1.0, -1.0, -1.0, 1.0, -1.0, 1.0)
_MIRROR_ORDER = list(range(NUM_BODY_JOINTS))
for _left, _right in MIRROR_PAIRS:
    if _right < NUM_BODY_JOINTS:
        _MIRROR_ORDER[_left], _MIRROR_ORDER[_right] = _right, _left


def encode_features(rot6d: Tensor, transl: Tensor, skeleton: Skeleton) -> Tensor:
    """Features (L, 201), not normalised, of rotations (L, 22, 6) and translation (L, 3).

    skeleton: the body whose bone lengths the 66 positions are built with; decoding ignores them.
    """
    _, joints = forward_kinematics(rot6d_to_matrix(rot6d), skeleton)
    body = joints[:, :NUM_BODY_JOINTS] - joints[:, PELVIS : PELVIS + 1]
    return torch.cat([transl, rot6d.flatten(1), body.flatten(1)], dim=1)


def decode_features(features: Tensor) -> tuple[Tensor, Tensor]:
    """Rotations (..., 22, 6) as they stand, and translation (..., 3), of features (..., 201)."""
    if features.shape[-1] != NUM_FEATURES:
        raise InputError(
            f"motion features have {features.shape[-1]} numbers a frame; allowed: {NUM_FEATURES}"
        )
    rot6d = features[..., 3:_POSITIONS].unflatten(-1, (NUM_BODY_JOINTS, 6))
    return rot6d, features[..., :3]


def rotate_yaw(
    rot6d: Tensor, transl: Tensor, skeleton: Skeleton, angle: float
) -> tuple[Tensor, Tensor]:
    """The whole clip turned about the world's vertical axis by `angle` radians, +Z towards +X.

    rot6d: (L, 22, 6), transl: (L, 3). The translation is not the pelvis, so what turns is
    translation plus rest pelvis.
    """
    turn = yaw_matrix(torch.tensor(angle, dtype=torch.float64)).to(rot6d.dtype)
    root = turn @ rot6d[:, PELVIS].unflatten(-1, (3, 2))
    turned = torch.cat([root.flatten(1)[:, None], rot6d[:, 1:]], dim=1)
    pelvis = torch.tensor(skeleton.rest[PELVIS], dtype=transl.dtype)
    return turned, (transl + pelvis) @ turn.mT - pelvis


def canonicalise(rot6d: Tensor, transl: Tensor, skeleton: Skeleton) -> tuple[Tensor, Tensor]:
    """The clip moved to where training clips start: facing +Z, x = z = 0 at frame 0, floor y = 0.

    rot6d: (L, 22, 6), transl: (L, 3). The floor is the lowest sole by the joint rule (ground.py).
    """
    start = float(heading(rot6d_to_matrix(rot6d[0, PELVIS])))
    rot6d, transl = rotate_yaw(rot6d, transl, skeleton, -start)
    _, joints = forward_kinematics(rot6d_to_matrix(rot6d), skeleton)
    floor = joint_floor(joints + transl[:, None], skeleton)
    return rot6d, transl - torch.stack([transl[0, 0], floor, transl[0, 2]])


def mirror(rot6d: Tensor, transl: Tensor, skeleton: Skeleton) -> tuple[Tensor, Tensor]:
    """The clip in a mirror: left becomes right, x becomes -x. Twice gives the clip back.

    rot6d: (L, 22, 6), transl: (L, 3). Bodies that are not symmetric move as their own left and
    right allow: rotations are mirrored, not positions.
    """
    signs = torch.tensor(_MIRROR_SIGNS, dtype=rot6d.dtype)
    pelvis_x = float(skeleton.rest[PELVIS, 0])
    mirrored = transl.clone()
    mirrored[:, 0] = -transl[:, 0] - 2 * pelvis_x
    return rot6d[:, _MIRROR_ORDER] * signs, mirrored
