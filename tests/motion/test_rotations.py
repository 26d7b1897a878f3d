"""Rotation forms agree with scipy's, come back from round trips, and never turn into NaN."""

from __future__ import annotations

import numpy as np
import pytest
import roma
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation, Slerp

from hymotion_ray.errors import InputError
from hymotion_ray.motion.rotations import (
    continuous_quats,
    heading,
    matrix_to_quat,
    matrix_to_rot6d,
    matrix_to_rotvec,
    quat_to_matrix,
    resample,
    rot6d_to_matrix,
    rotvec_to_matrix,
    yaw_matrix,
)


def _random(count: int, seed: int = 0) -> torch.Tensor:
    return torch.tensor(Rotation.random(count, rng=np.random.default_rng(seed)).as_matrix())


def test_rot6d_holds_the_first_two_columns_interleaved() -> None:
    matrix = torch.arange(9.0).reshape(3, 3)
    assert matrix_to_rot6d(matrix).tolist() == [0, 1, 3, 4, 6, 7]


def test_every_form_comes_back() -> None:
    matrix = _random(50)
    for there, back in (
        (matrix_to_rot6d, rot6d_to_matrix),
        (matrix_to_rotvec, rotvec_to_matrix),
        (matrix_to_quat, quat_to_matrix),
    ):
        torch.testing.assert_close(back(there(matrix)), matrix, atol=1e-12, rtol=0)


def test_forms_are_scipys() -> None:
    matrix = _random(50)
    reference = Rotation.from_matrix(matrix.numpy())
    np.testing.assert_allclose(matrix_to_rotvec(matrix), reference.as_rotvec(), atol=1e-12)
    np.testing.assert_allclose(matrix_to_quat(matrix), reference.as_quat(canonical=True))


@given(st.lists(st.floats(-10, 10, width=32), min_size=6, max_size=6))
def test_any_six_numbers_give_a_rotation(numbers: list[float]) -> None:
    matrix = rot6d_to_matrix(torch.tensor(numbers, dtype=torch.float64))
    torch.testing.assert_close(
        matrix @ matrix.mT, torch.eye(3, dtype=torch.float64), atol=1e-5, rtol=0
    )
    assert float(torch.linalg.det(matrix)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("numbers", [[0.0] * 6, [1.0, 1, 0, 0, 0, 0], [1.0, 0, 0, 0, 0, 0]])
def test_six_numbers_without_two_directions_give_the_identity(numbers: list[float]) -> None:
    assert torch.equal(rot6d_to_matrix(torch.tensor(numbers)), torch.eye(3))


def test_nan_stays_visible() -> None:
    assert bool(rot6d_to_matrix(torch.full((6,), float("nan"))).isnan().any())


def test_continuous_quats_never_jump_and_stay_the_same_rotations() -> None:
    matrix = yaw_matrix(torch.linspace(0, 20, 200, dtype=torch.float64))[:, None]
    quats = matrix_to_quat(matrix)
    smooth = continuous_quats(quats)
    assert float((quats[1:] * quats[:-1]).sum(-1).min()) < 0
    assert float((smooth[1:] * smooth[:-1]).sum(-1).min()) > 0.9
    torch.testing.assert_close(quat_to_matrix(smooth), matrix)


@given(st.floats(-3.1, 3.1))
def test_heading_is_the_yaw_that_was_put_in(yaw: float) -> None:
    turn = yaw_matrix(torch.tensor(yaw, dtype=torch.float64))
    bowed = rotvec_to_matrix(torch.tensor([0.4, 0, 0], dtype=torch.float64))
    assert float(heading(turn @ bowed)) == pytest.approx(yaw, abs=1e-9)


def test_heading_of_a_lying_body_is_that_of_its_side() -> None:
    on_its_back = rotvec_to_matrix(torch.tensor([-np.pi / 2, 0, 0], dtype=torch.float64))
    turn = yaw_matrix(torch.tensor(0.7, dtype=torch.float64))
    assert float(heading(turn @ on_its_back)) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("num_frames", "fps", "new_fps", "expected"),
    [(121, 120, 30, 31), (60, 60, 30, 30), (41, 100, 30, 13), (10, 20, 30, 14), (1, 120, 30, 1)],
)
def test_resampling_keeps_time_and_is_slerp(
    num_frames: int, fps: float, new_fps: float, expected: int
) -> None:
    matrix, transl = _random(num_frames)[:, None], torch.randn(num_frames, 3, dtype=torch.float64)
    rotations, places = resample(matrix, transl, fps, new_fps)
    assert len(rotations) == len(places) == expected
    if num_frames == 1:
        assert torch.equal(places, transl)
        return
    times, new_times = np.arange(num_frames) / fps, np.arange(expected) / new_fps
    new_times = np.minimum(new_times, times[-1])
    slerp = Slerp(times, Rotation.from_matrix(matrix[:, 0].numpy()))(new_times).as_matrix()
    np.testing.assert_allclose(rotations[:, 0], slerp, atol=1e-8)
    for axis in range(3):
        linear = np.interp(new_times, times, transl[:, axis])
        np.testing.assert_allclose(places[:, axis], linear, atol=1e-9)


def test_resampling_to_the_same_rate_changes_nothing() -> None:
    matrix, transl = roma.random_rotmat(40).reshape(10, 4, 3, 3), torch.randn(10, 3)
    rotations, places = resample(matrix, transl, 30, 30)
    torch.testing.assert_close(rotations, matrix, atol=2e-6, rtol=0)
    torch.testing.assert_close(places, transl)


def test_resampling_to_no_rate_is_refused() -> None:
    with pytest.raises(InputError, match="above 0"):
        resample(_random(3)[:, None], torch.zeros(3, 3), 30, 0)


def test_one_frame_has_one_quaternion() -> None:
    quat = torch.randn(1, 22, 4)
    assert torch.equal(continuous_quats(quat), quat)
