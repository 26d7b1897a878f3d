"""Rotations and joints of a clip in numpy, frames last: for CPUs that work through many clips.

It knows what `kinematics.py` and `rotations.py` know, for one clip at a time in float64. A clip of
some hundred frames is so little work that the calls cost more than the numbers: here a joint level
of the tree is one call over contiguous frames, five times as fast as tensors with frames first
(measured on 210 frames). Knows no gradients and no other devices.

Shape letters: L frames, J joints, 22 or 52.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.motion.skeleton import (
    ANKLES,
    FEET,
    MIRROR_PAIRS,
    NUM_BODY_JOINTS,
    NUM_JOINTS,
    PARENTS,
    PELVIS,
    WRISTS,
    Skeleton,
)

Array = NDArray[np.float64]

_NO_LENGTH = 1e-12
_HALF_OF_ONE = 0.5
_FLAT = 1e-2
# Mirroring x: R becomes M R M with M = diag(-1, 1, 1).
_MIRROR_SIGNS = np.outer([-1.0, 1, 1], [-1.0, 1, 1])[:, :, None]
_MIRROR_ORDER = list(range(NUM_BODY_JOINTS))
for _left, _right in MIRROR_PAIRS:
    if _right < NUM_BODY_JOINTS:
        _MIRROR_ORDER[_left], _MIRROR_ORDER[_right] = _right, _left


def _levels(num_joints: int) -> list[tuple[list[int], list[int]]]:
    """Joints of equal distance from the pelvis and their parents, nearest first."""
    depth = [0] * num_joints
    for joint in range(1, num_joints):
        depth[joint] = depth[PARENTS[joint]] + 1
    return [
        (level, [PARENTS[j] for j in level])
        for level in ([j for j in range(num_joints) if depth[j] == d] for d in range(1, 20))
        if level
    ]


_LEVELS = {num: _levels(num) for num in (NUM_BODY_JOINTS, NUM_JOINTS)}
# Whose rotation carries each joint but the pelvis: fingers follow their wrist.
_CARRIERS = [*PARENTS[1:NUM_BODY_JOINTS], *[WRISTS[0]] * 15, *[WRISTS[1]] * 15]


def local_rotations(rot6d: NDArray[np.floating]) -> Array:
    """Rotation matrices (J, 3, 3, L) of interleaved rot6d (L, J, 6): `rot6d_to_matrix`.

    Input without two directions gives the identity.
    """
    six = np.ascontiguousarray(rot6d.transpose(2, 1, 0), dtype=np.float64)
    first, second = six[0::2], six[1::2]  # (3, J, L) each
    first = first / np.maximum(_length(first), _NO_LENGTH)
    second = second - _dot(first, second) * first
    second /= np.maximum(_length(second), _NO_LENGTH)
    matrix = np.empty((six.shape[1], 3, 3, six.shape[2]))
    for k in range(3):
        matrix[:, k, 0], matrix[:, k, 1] = first[k], second[k]
        a, b = (k + 1) % 3, (k + 2) % 3
        matrix[:, k, 2] = first[a] * second[b] - first[b] * second[a]
    lost = (_dot(first, first) < _HALF_OF_ONE) | (_dot(second, second) < _HALF_OF_ONE)
    if lost.any():
        matrix = np.where(lost[:, None, None], np.eye(3)[:, :, None], matrix)
    return matrix


def world_rotations(local: Array) -> Array:
    """World rotations (22, 3, 3, L) of local ones (22, 3, 3, L): `global_rotations`."""
    world = local.copy()
    for joints, parents in _LEVELS[NUM_BODY_JOINTS]:
        parent, own = world[parents], world[joints]
        turned = parent[:, :, 0, None] * own[:, None, 0]
        turned += parent[:, :, 1, None] * own[:, None, 1]
        turned += parent[:, :, 2, None] * own[:, None, 2]
        world[joints] = turned
    return world


def facing_turn(root: Array) -> Array:
    """The turn (3, 3) about +Y that makes a body of orientation (3, 3) face +Z.

    The yaw of `rotations.heading`, taken back.
    """
    front, left = root[:, 2], root[:, 0]
    flat = front[0] ** 2 + front[2] ** 2 > _FLAT
    yaw = math.atan2(front[0], front[2]) if flat else math.atan2(-left[2], left[0])
    sine, cosine = math.sin(-yaw), math.cos(yaw)
    return np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])


def mirrored_rotations(local: Array) -> Array:
    """Local rotations (22, 3, 3, L) of the body in a mirror: `features.mirror`."""
    mirrored: Array = local[_MIRROR_ORDER] * _MIRROR_SIGNS
    return mirrored


def posed_joints(world: Array, skeleton: Skeleton, num_joints: int = NUM_JOINTS) -> Array:
    """Posed joints (num_joints, 3, L) of world rotations (22, 3, 3, L): `joint_positions`.

    Without translation: the pelvis stays at its rest position. num_joints: 52, or 22 without hands.
    """
    offsets = skeleton.offsets[:num_joints]
    bones = np.einsum("jikl,jk->jil", world[_CARRIERS[: num_joints - 1]], offsets[1:])
    joints = np.empty((num_joints, 3, world.shape[-1]))
    joints[PELVIS] = offsets[PELVIS][:, None]
    for level, parents in _LEVELS[num_joints]:
        # Levels of this tree are not neighbours by number, so they are picked by index.
        joints[level] = joints[parents] + bones[[j - 1 for j in level]]
    return joints


def sole_columns(joints: Array, skeleton: Skeleton) -> Array:
    """Height (2, L) of the left and the right sole, from joints (J, 3, L): `sole_heights`."""
    ankles = joints[list(ANKLES), 1] - skeleton.ankle_height
    toes = joints[list(FEET), 1] - skeleton.toe_height
    lowest: Array = np.minimum(ankles, toes)
    return lowest


def _dot(a: Array, b: Array) -> Array:
    """Dot products (...) of vectors (3, ...)."""
    product: Array = a[0] * b[0]
    product += a[1] * b[1]
    product += a[2] * b[2]
    return product


def _length(a: Array) -> Array:
    length: Array = np.sqrt(_dot(a, a))
    return length
