"""Forward kinematics: from local rotations to every joint's world rotation and position.

It knows the joint tree and nothing of time; frames are a batch dimension, and each frame's result
is the same to the bit whatever else is in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hymotion_ray.motion.skeleton import (
    NUM_BODY_JOINTS,
    NUM_JOINTS,
    PARENTS,
    PELVIS,
    WRISTS,
    Skeleton,
)

# Whose rotation carries each joint but the pelvis; fingers without rotations follow their wrist.
_CARRIERS = {
    NUM_JOINTS: PARENTS[1:],
    NUM_BODY_JOINTS: PARENTS[1:NUM_BODY_JOINTS] + (WRISTS[0],) * 15 + (WRISTS[1],) * 15,
}


def global_rotations(local: Tensor) -> Tensor:
    """World rotations (..., J, 3, 3) of local ones (..., J, 3, 3), J either 22 or 52."""
    world = list(local.unbind(dim=-3))
    for joint in range(1, len(world)):
        world[joint] = world[PARENTS[joint]] @ world[joint]
    return torch.stack(world, dim=-3)


def joint_positions(world: Tensor, skeleton: Skeleton) -> Tensor:
    """Posed joints (..., 52, 3) of world rotations (..., J, 3, 3), J either 22 or 52; metres.

    Without translation: the pelvis stays at its rest position. With 22 rotations the fingers are
    part of the wrist (identity finger rotations).
    """
    offsets = torch.tensor(skeleton.offsets, dtype=world.dtype, device=world.device)
    carriers = torch.tensor(_CARRIERS[world.shape[-3]], device=world.device)
    bones = (world.index_select(-3, carriers) @ offsets[1:, :, None]).squeeze(-1)
    joints = [offsets[PELVIS].expand(*world.shape[:-3], 3)]
    for joint in range(1, NUM_JOINTS):
        joints.append(joints[PARENTS[joint]] + bones[..., joint - 1, :])
    return torch.stack(joints, dim=-2)


def forward_kinematics(local: Tensor, skeleton: Skeleton) -> tuple[Tensor, Tensor]:
    """World rotations (..., J, 3, 3) and posed joints (..., 52, 3) without translation.

    local: (..., J, 3, 3) rotations against the parent, J either 22 or 52.
    """
    world = global_rotations(local)
    return world, joint_positions(world, skeleton)
