"""Smoothing is scipy's mean rotation and Savitzky-Golay, clip by clip, down to one frame."""

from __future__ import annotations

import numpy as np
import pytest
import roma
import torch
from motion_clips import make_clip
from scipy.signal import savgol_filter
from scipy.spatial.transform import Rotation

from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.smoothing import (
    nearest_rotations,
    smooth_rotations,
    smooth_translation,
)


def _mean_rotations(matrix: np.ndarray) -> np.ndarray:
    """Each frame's Markley mean of 9 neighbours, by scipy, one frame after the other."""
    weights = np.exp(-0.5 * np.arange(-4, 5) ** 2.0)
    padded = np.pad(matrix, ((4, 4), (0, 0), (0, 0)), mode="edge")
    windows = [Rotation.from_matrix(padded[i : i + 9]) for i in range(len(matrix))]
    return np.stack([window.mean(weights).as_matrix() for window in windows])


@pytest.mark.parametrize("num_frames", [1, 2, 5, 9, 30])
def test_rotations_are_the_markley_mean(num_frames: int) -> None:
    matrix = rot6d_to_matrix(make_clip(num_frames, speed=0.4)[0].double())
    smoothed = smooth_rotations(matrix, [num_frames])
    for joint in (0, 7, 21):
        expected = _mean_rotations(matrix[:, joint].numpy())
        np.testing.assert_allclose(smoothed[:, joint], expected, atol=1e-9)


def test_wild_rotations_are_the_markley_mean_too() -> None:
    matrix = roma.random_rotmat(60, dtype=torch.float64)[:, None]
    smoothed = smooth_rotations(matrix, [60])
    np.testing.assert_allclose(smoothed[:, 0], _mean_rotations(matrix[:, 0].numpy()), atol=1e-7)


def test_a_still_clip_stays_as_it_is() -> None:
    rot6d, transl = make_clip(1)
    matrix = rot6d_to_matrix(rot6d.double()).expand(20, -1, -1, -1).contiguous()
    torch.testing.assert_close(smooth_rotations(matrix, [20]), matrix, atol=1e-12, rtol=0)
    still = transl.expand(20, -1)
    torch.testing.assert_close(smooth_translation(still, [20]), still, atol=1e-6, rtol=0)


def test_clips_side_by_side_do_not_touch() -> None:
    lengths = [1, 7, 30, 4, 12]
    clips = [make_clip(length, seed=length) for length in lengths]
    matrices = [rot6d_to_matrix(rot6d.double()) for rot6d, _ in clips]
    together = smooth_rotations(torch.cat(matrices), lengths).split(lengths)
    places = smooth_translation(torch.cat([transl for _, transl in clips]), lengths).split(lengths)
    for matrix, (_, transl), turned, place in zip(matrices, clips, together, places, strict=True):
        assert torch.equal(smooth_rotations(matrix, [len(matrix)]), turned)
        assert torch.equal(smooth_translation(transl, [len(transl)]), place)


@pytest.mark.parametrize("num_frames", range(1, 14))
def test_translation_window_is_the_largest_odd_one_that_fits(num_frames: int) -> None:
    transl = make_clip(num_frames)[1]
    smoothed = smooth_translation(transl, [num_frames])
    assert smoothed.dtype == torch.float32
    if num_frames < 7:
        assert torch.equal(smoothed, transl)
        return
    window = min(11, num_frames - 1 + num_frames % 2)
    expected = savgol_filter(transl.double().numpy(), window, 5, axis=0)
    np.testing.assert_allclose(smoothed, expected, rtol=2e-7, atol=1e-7)
    assert not np.allclose(expected, transl, atol=1e-5)


def test_nearest_rotations_are_those_of_the_singular_value_decomposition() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(500, 3, 3, generator=generator, dtype=torch.float64)
    near = roma.random_rotmat(500, dtype=torch.float64) + 0.1 * noise
    for matrix in (near, noise):
        torch.testing.assert_close(
            nearest_rotations(matrix), roma.special_procrustes(matrix), atol=1e-9, rtol=0
        )


def test_turns_that_cancel_out_still_give_a_rotation() -> None:
    half = torch.eye(3, dtype=torch.float64) * torch.tensor([[1.0], [-1], [-1]])
    matrix = torch.stack([torch.zeros(3, 3).double(), (torch.eye(3).double() + half) / 2])
    nearest = nearest_rotations(matrix)
    identity = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    torch.testing.assert_close(nearest @ nearest.mT, identity, atol=1e-9, rtol=0)
    torch.testing.assert_close(torch.linalg.det(nearest), torch.ones(2).double())
