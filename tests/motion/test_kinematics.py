"""Forward kinematics against a plain walk down the tree with 4 x 4 matrices; Motion's checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import roma
import torch
from motion_clips import make_clip

from hymotion_ray.errors import InputError
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import PARENTS, Skeleton


def _by_matrices(local: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Joints (52, 3) of one frame, each by multiplying out its own chain."""
    joints = np.empty((52, 3))
    for joint in range(52):
        chain, link = np.eye(4), joint
        while link >= 0:
            step = np.eye(4)
            step[:3, :3] = local[link]
            step[:3, 3] = rest[link] - (rest[PARENTS[link]] if link else 0)
            chain, link = step @ chain, PARENTS[link]
        joints[joint] = chain[:3, 3]
    return joints


def test_joints_are_those_of_the_matrix_chains(crooked: Skeleton) -> None:
    local = roma.random_rotmat(3 * 52, dtype=torch.float64).reshape(3, 52, 3, 3)
    _, joints = forward_kinematics(local, crooked)
    for frame in range(3):
        expected = _by_matrices(local[frame].numpy(), crooked.rest.astype(np.float64))
        np.testing.assert_allclose(joints[frame], expected, atol=1e-9)


def test_fingers_without_rotations_are_identity_fingers(crooked: Skeleton) -> None:
    local = roma.random_rotmat(4 * 22, dtype=torch.float64).reshape(4, 22, 3, 3)
    fingers = torch.eye(3, dtype=torch.float64).expand(4, 30, 3, 3)
    _, joints = forward_kinematics(local, crooked)
    _, expected = forward_kinematics(torch.cat([local, fingers], dim=1), crooked)
    torch.testing.assert_close(joints, expected, atol=1e-12, rtol=0)


def test_bones_keep_their_length(crooked: Skeleton) -> None:
    motion = Motion.from_rotations(*make_clip(30), crooked, 30)
    bones = motion.joints[:, 1:] - motion.joints[:, list(PARENTS[1:])]
    lengths = np.linalg.norm(crooked.offsets[1:], axis=1)
    np.testing.assert_allclose(bones.norm(dim=-1), np.broadcast_to(lengths, (30, 51)), atol=1e-6)


def test_rest_pose_is_the_rest_positions(skeleton: Skeleton, standing: Motion) -> None:
    np.testing.assert_allclose(standing.joints[0] - standing.transl[0], skeleton.rest, atol=1e-6)


def test_pelvis_is_rest_plus_translation(crooked: Skeleton) -> None:
    motion = Motion.from_rotations(*make_clip(5), crooked, 30)
    torch.testing.assert_close(motion.joints[:, 0], motion.transl + torch.tensor(crooked.rest[0]))
    assert motion.num_frames == 5
    assert motion.duration == pytest.approx(5 / 30)
    root = rot6d_to_matrix(motion.rot6d)[:, 0]
    torch.testing.assert_close(motion.global_rotations()[:, 0], root)


@pytest.mark.parametrize(
    ("rot6d", "transl", "fps"),
    [
        (torch.zeros(4, 21, 6), torch.zeros(4, 3), 30.0),
        (torch.zeros(4, 22, 6), torch.zeros(5, 3), 30.0),
        (torch.zeros(0, 22, 6), torch.zeros(0, 3), 30.0),
        (torch.zeros(4, 22, 6), torch.zeros(4, 3), 0.0),
        (torch.zeros(4, 22, 6), torch.zeros(4, 3), float("nan")),
        (torch.zeros(4, 22, 6), torch.zeros(4, 3), 1001.0),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    rot6d: torch.Tensor, transl: torch.Tensor, fps: float, skeleton: Skeleton
) -> None:
    with pytest.raises(InputError, match="allowed"):
        Motion.from_rotations(rot6d, transl, skeleton, fps)


@pytest.mark.parametrize(
    "meta",
    [{"": 1}, {"seed": None}, {"x": float("nan")}, {"prompt": "\ud800"}, {5: "x"}],
    ids=range(5),
)
def test_meta_that_no_format_could_carry_is_refused(
    meta: dict[Any, Any], skeleton: Skeleton
) -> None:
    with pytest.raises(InputError, match="motion's meta"):
        Motion.from_rotations(*make_clip(3), skeleton, 30, meta)


def test_numbers_of_other_libraries_become_pythons(skeleton: Skeleton) -> None:
    meta: dict[str, Any] = {"seed": np.int64(7), "score": np.float32(0.5), "prompt": "走"}
    motion = Motion.from_rotations(*make_clip(3), skeleton, 30, meta)
    assert motion.meta == {"seed": 7, "score": 0.5, "prompt": "走"}
    assert [type(value) for value in motion.meta.values()] == [int, float, str]
