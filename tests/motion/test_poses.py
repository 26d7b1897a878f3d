"""SMPL poses come back as the motion they came from, in both axes and for any rest pelvis."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from motion_clips import make_clip

from hymotion_ray.errors import InputError
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.poses import (
    SMPL_PELVIS,
    Up,
    from_smpl,
    poses_of,
    relaxed_hands,
    rot6d_of_poses,
    to_smpl,
)
from hymotion_ray.motion.skeleton import Skeleton


@pytest.fixture
def motion(crooked: Skeleton) -> Motion:
    return Motion.from_rotations(*make_clip(15), crooked, 30)


def test_poses_come_back(motion: Motion) -> None:
    poses = poses_of(motion)
    assert poses.shape == (15, 156)
    assert poses.dtype == np.float32
    assert not poses[:, 66:].any()
    torch.testing.assert_close(rot6d_of_poses(poses), motion.rot6d, atol=1e-5, rtol=0)


def test_hands_are_put_in_every_frame(motion: Motion) -> None:
    hands = relaxed_hands()
    poses = poses_of(motion, hands)
    np.testing.assert_array_equal(poses[:, 66:], np.tile(hands, (15, 1)))
    left, right = hands.reshape(2, 15, 3)
    np.testing.assert_array_equal(right, left * np.array([1, -1, -1], np.float32))


@pytest.mark.parametrize("up", ["y", "z"])
@pytest.mark.parametrize("pelvis", [SMPL_PELVIS, (0.1, -0.3, 0.2)])
def test_smpl_there_and_back(
    up: Up, pelvis: tuple[float, float, float], motion: Motion, crooked: Skeleton
) -> None:
    poses, trans = to_smpl(motion, up, pelvis)
    back = from_smpl(poses, trans, crooked, 30, up=up, pelvis=pelvis)
    torch.testing.assert_close(back.rot6d, motion.rot6d, atol=1e-5, rtol=0)
    torch.testing.assert_close(back.transl, motion.transl, atol=1e-5, rtol=0)


def test_z_up_puts_the_pelvis_where_it_was(motion: Motion) -> None:
    """A SMPL body has its pelvis at trans + J0; Z-up swaps the axes of that point."""
    poses, trans = to_smpl(motion, "z")
    pelvis = trans + np.array(SMPL_PELVIS)
    x, y, z = motion.joints[:, 0].double().numpy().T
    np.testing.assert_allclose(pelvis, np.stack([x, -z, y], axis=1), atol=1e-5)
    np.testing.assert_array_equal(poses[:, 3:], poses_of(motion)[:, 3:])


def test_a_body_standing_in_z_up_stands_in_y_up(skeleton: Skeleton) -> None:
    """A quarter turn about x is how Z-up data says "upright", facing the reader's -y."""
    poses = np.zeros((1, 156))
    poses[0, 0] = np.pi / 2
    trans = np.array([[0.5, 2.0, 1.2]]) - np.array(SMPL_PELVIS)
    motion = from_smpl(poses, trans, skeleton, 30, up="z")
    torch.testing.assert_close(motion.local_rotations()[0, 0], torch.eye(3), atol=1e-6, rtol=0)
    np.testing.assert_allclose(motion.joints[0, 0], [0.5, 1.2, -2.0], atol=1e-6)


def test_scale_stretches_the_path_of_the_pelvis(motion: Motion, crooked: Skeleton) -> None:
    poses, trans = to_smpl(motion, "y")
    twice = from_smpl(poses, trans, crooked, 30, up="y", scale=2)
    torch.testing.assert_close(twice.joints[:, 0], 2 * motion.joints[:, 0], atol=1e-5, rtol=0)


def test_smpl_and_smplx_widths_give_the_same_body(motion: Motion) -> None:
    poses = poses_of(motion, relaxed_hands())
    for width in (66, 72, 156):
        assert torch.equal(rot6d_of_poses(poses[:, :width]), rot6d_of_poses(poses))


@pytest.mark.parametrize("poses", [np.zeros((4, 63)), np.zeros(156), np.full((4, 156), np.nan)])
def test_poses_that_do_not_fit_are_refused(poses: np.ndarray, skeleton: Skeleton) -> None:
    with pytest.raises(InputError, match="66 or more"):
        rot6d_of_poses(poses)


@pytest.mark.parametrize("trans", [np.zeros((3, 3)), np.full((4, 3), np.inf)])
def test_translation_that_does_not_fit_is_refused(trans: np.ndarray, skeleton: Skeleton) -> None:
    with pytest.raises(InputError, match="translation"):
        from_smpl(np.zeros((4, 156)), trans, skeleton, 30, up="y")
