"""Kinematics in numpy, frames last, are those of the tensors."""

from __future__ import annotations

import numpy as np
import pytest
import roma
import torch

from hymotion_ray.motion.canonical import canonical_clip
from hymotion_ray.motion.columns import (
    facing_turn,
    local_rotations,
    mirrored_rotations,
    posed_joints,
    sole_columns,
    world_rotations,
)
from hymotion_ray.motion.features import canonicalise, mirror
from hymotion_ray.motion.ground import sole_heights
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import heading, matrix_to_rot6d, rot6d_to_matrix
from hymotion_ray.motion.skeleton import Skeleton


def _local(num_frames: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return roma.special_gramschmidt(
        torch.randn(num_frames, 22, 3, 2, dtype=torch.float64, generator=draw)
    )


@pytest.mark.parametrize("num_frames", [1, 17])
def test_joints_are_those_of_the_tensors(crooked: Skeleton, num_frames: int) -> None:
    local = _local(num_frames)
    world, joints = forward_kinematics(local, crooked)
    found = world_rotations(local_rotations(matrix_to_rot6d(local).numpy()))
    np.testing.assert_allclose(found.transpose(3, 0, 1, 2), world, atol=1e-12)
    columns = posed_joints(found, crooked)
    np.testing.assert_allclose(columns.transpose(2, 0, 1), joints, atol=1e-12)
    np.testing.assert_array_equal(posed_joints(found, crooked, 22), columns[:22])
    np.testing.assert_allclose(sole_columns(columns, crooked).T, sole_heights(joints, crooked))


def test_six_numbers_without_two_directions_are_the_identity() -> None:
    rot6d = torch.randn(5, 22, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rot6d[2, 3] = 0
    rot6d[3, 4] = torch.tensor([1.0, 1, 2, 2, 3, 3])
    found = local_rotations(rot6d.numpy()).transpose(3, 0, 1, 2)
    np.testing.assert_allclose(found, rot6d_to_matrix(rot6d), atol=1e-9)
    np.testing.assert_array_equal(found[2, 3], np.eye(3))


def test_a_mirror_swaps_what_the_tensors_swap() -> None:
    local = _local(6)
    there, _ = mirror(matrix_to_rot6d(local), torch.zeros(6, 3), Skeleton(np.zeros((52, 3))))
    found = mirrored_rotations(np.moveaxis(local.numpy(), 0, -1))
    np.testing.assert_allclose(np.moveaxis(found, -1, 0), rot6d_to_matrix(there), atol=1e-12)


def test_facing_is_taken_back() -> None:
    lying = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)
    for root in (*_local(20)[:, 0], lying):
        turned = torch.from_numpy(facing_turn(root.numpy())) @ root
        assert float(heading(turned)) == pytest.approx(0, abs=1e-9)


def test_a_placed_clip_is_the_canonical_one(crooked: Skeleton) -> None:
    rot6d, transl = matrix_to_rot6d(_local(30)), torch.linspace(0, 1, 90).double().reshape(30, 3)
    take = Motion.from_rotations(rot6d, transl, crooked, 30)
    there = Motion.from_rotations(
        *canonicalise(take.rot6d.double(), take.transl.double(), crooked), crooked, 30
    )
    here = canonical_clip(take)
    np.testing.assert_allclose(here.rot6d, there.rot6d, atol=1e-6)
    np.testing.assert_allclose(here.transl, there.transl, atol=1e-6)
    np.testing.assert_allclose(here.joints, there.joints, atol=2e-6)
