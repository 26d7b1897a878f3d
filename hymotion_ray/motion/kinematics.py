"""Forward kinematics: from local rotations to every joint's world rotation and position.

It knows the joint tree and nothing of time; frames are a batch dimension, and each frame's result
is the same to the bit whatever else is in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, NUM_JOINTS, PARENTS, PELVIS, Skeleton


def _levels(num_joints: int) -> list[tuple[list[int], list[int]]]:
    """Joints and their parents, one pair of lists for each distance from the pelvis."""
    depth = [0] * num_joints
    for joint in range(1, num_joints):
        depth[joint] = depth[PARENTS[joint]] + 1
    groups = []
    for level in range(1, max(depth) + 1):
        joints = [joint for joint in range(num_joints) if depth[joint] == level]
        groups.append((joints, [PARENTS[joint] for joint in joints]))
    return groups


_LEVELS = {count: _levels(count) for count in (NUM_BODY_JOINTS, NUM_JOINTS)}


def global_rotations(local: Tensor) -> Tensor:
    """World rotations (..., J, 3, 3) of local ones (..., J, 3, 3), J either 22 or 52."""
    world = torch.empty_like(local)
    world[..., PELVIS, :, :] = local[..., PELVIS, :, :]
    for joints, parents in _LEVELS[local.shape[-3]]:
        world[..., joints, :, :] = world[..., parents, :, :] @ local[..., joints, :, :]
    return world


def joint_positions(world: Tensor, skeleton: Skeleton) -> Tensor:
    """Posed joints (..., 52, 3) of world rotations (..., J, 3, 3), J either 22 or 52; metres.

    Without translation: the pelvis stays at its rest position. With 22 rotations the fingers are
    part of the wrist (identity finger rotations).
    """
    offsets = torch.as_tensor(skeleton.offsets.copy(), dtype=world.dtype, device=world.device)
    if world.shape[-3] == NUM_BODY_JOINTS:
        wrist = [20] * 15 + [21] * 15
        world = torch.cat([world, world[..., wrist, :, :]], dim=-3)
    bones = (world[..., PARENTS[1:], :, :] @ offsets[1:, :, None]).squeeze(-1)
    joints = torch.empty(*world.shape[:-3], NUM_JOINTS, 3, dtype=world.dtype, device=world.device)
    joints[..., PELVIS, :] = offsets[PELVIS]
    for children, parents in _LEVELS[NUM_JOINTS]:
        above = [child - 1 for child in children]
        joints[..., children, :] = joints[..., parents, :] + bones[..., above, :]
    return joints


def forward_kinematics(local: Tensor, skeleton: Skeleton) -> tuple[Tensor, Tensor]:
    """World rotations (..., J, 3, 3) and posed joints (..., 52, 3) without translation.

    local: (..., J, 3, 3) rotations against the parent, J either 22 or 52.
    """
    world = global_rotations(local)
    return world, joint_positions(world, skeleton)
