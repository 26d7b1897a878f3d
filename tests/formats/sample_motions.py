"""Motions and bodies that the tests of the motion files share, made from formulas and seeds."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.motion import Meta, Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d
from hymotion_ray.motion.skeleton import JOINT_NAMES, PARENTS, Skeleton, generic_skeleton

META: Meta = {"prompt": "a person walks", "seed": 7, "model": "tiny", "licence": "Apache-2.0"}
WITHIN_MM = 1e-3


def crooked_skeleton() -> Skeleton:
    """A body that is not symmetric and whose pelvis lies off the mid line."""
    shifts = np.random.default_rng(3).normal(0, 0.02, (52, 3))
    return Skeleton((generic_skeleton().rest + shifts).astype(np.float32))


def tumble(
    num_frames: int = 40,
    seed: int = 0,
    *,
    skeleton: Skeleton | None = None,
    fps: float = 30.0,
    meta: Meta = META,
) -> Motion:
    """Every joint turns about any axis, far past half a turn; the root wanders."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(0, 0.12, (num_frames, 22, 3))
    steps[0] = rng.normal(0, 1.4, (22, 3))
    turns = Rotation.from_rotvec(steps.reshape(-1, 3))
    matrices = turns.as_matrix().reshape(num_frames, 22, 3, 3)
    for frame in range(1, num_frames):
        matrices[frame] = matrices[frame - 1] @ matrices[frame]
    transl = np.cumsum(rng.normal(0, 0.03, (num_frames, 3)), axis=0)
    return _motion(matrices, transl, skeleton, fps, meta)


def stand(num_frames: int = 30, *, raised: str | None = None, meta: Meta = META) -> Motion:
    """A body in its rest pose, facing +Z, soles on the floor; one named joint swings to and fro."""
    skeleton = generic_skeleton()
    angles = np.zeros((num_frames, 22, 3))
    if raised is not None:
        swing = np.sin(np.arange(num_frames) / 30 * 2 * np.pi)
        angles[:, JOINT_NAMES.index(raised), 2] = swing
    matrices = Rotation.from_rotvec(angles.reshape(-1, 3)).as_matrix().reshape(-1, 22, 3, 3)
    height = skeleton.toe_height - float(skeleton.rest[[10, 11], 1].min())
    transl = np.tile([0, height, 0], (num_frames, 1))
    return _motion(matrices, transl, skeleton, 30.0, meta)


def body_mesh(skeleton: Skeleton) -> BodyMesh:
    """A random surface around the joints, fingers included, one to four bones a vertex."""
    rng = np.random.default_rng(4)
    bones = np.concatenate([np.arange(52), rng.integers(0, 52, 248)])
    indices = np.stack([bones, *(rng.integers(0, 52, 300) for _ in range(3))], axis=1)
    indices[:, 1] = [max(PARENTS[bone], 0) for bone in bones]
    weights = rng.dirichlet((4, 2, 0.3, 0.1), 300) * (rng.random((300, 4)) < (1, 0.6, 0.3, 0.3))
    weights /= weights.sum(axis=1, keepdims=True)
    vertices = skeleton.rest[bones] + rng.normal(0, 0.03, (300, 3))
    faces = rng.permutation(300).reshape(-1, 3)
    return BodyMesh(vertices.astype("f4"), weights.astype("f4"), indices, faces)


def _motion(
    matrices: np.ndarray, transl: np.ndarray, skeleton: Skeleton | None, fps: float, meta: Meta
) -> Motion:
    rot6d = matrix_to_rot6d(torch.tensor(matrices, dtype=torch.float32))
    body = skeleton or generic_skeleton()
    return Motion.from_rotations(rot6d, torch.tensor(transl).float(), body, fps, meta)
