"""Bodies that the motion tests share: tiny, real, made from seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import PARENTS, Skeleton, generic_skeleton


@pytest.fixture(scope="session")
def skeleton() -> Skeleton:
    return generic_skeleton()


@pytest.fixture(scope="session")
def crooked() -> Skeleton:
    """A body that is not symmetric and whose pelvis lies off the mid line."""
    rng = np.random.default_rng(3)
    rest = generic_skeleton().rest + rng.normal(0, 0.02, (52, 3))
    return Skeleton(rest.astype(np.float32))


@pytest.fixture(scope="session")
def mesh(crooked: Skeleton) -> BodyMesh:
    """A random surface around the crooked body: one to four bones a vertex, fingers too."""
    rng = np.random.default_rng(4)
    bones = rng.integers(0, 52, 400)
    indices = np.stack([bones, *(rng.integers(0, 52, 400) for _ in range(3))], axis=1)
    indices[:, 1] = [max(PARENTS[bone], 0) for bone in bones]
    weights = rng.dirichlet((4, 2, 0.3, 0.1), 400) * (rng.random((400, 4)) < (1, 0.6, 0.3, 0.3))
    weights /= weights.sum(axis=1, keepdims=True)
    vertices = crooked.rest[bones] + rng.normal(0, 0.05, (400, 3))
    faces = rng.integers(0, 400, (50, 3))
    return BodyMesh(vertices.astype("f4"), weights.astype("f4"), indices, faces)


@pytest.fixture(scope="session")
def standing(skeleton: Skeleton) -> Motion:
    """Two seconds of a body at rest with its soles on the floor."""
    rot6d = torch.tensor([1.0, 0, 0, 1, 0, 0]).repeat(60, 22, 1)
    height = skeleton.toe_height - float(skeleton.rest[[10, 11], 1].min())
    return Motion.from_rotations(rot6d, torch.tensor([0, height, 0]).repeat(60, 1), skeleton, 30)
