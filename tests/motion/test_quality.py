"""Quality sees what was put in: sliding, hovering, noise, walking backwards; and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from motion_clips import make_clip

from hymotion_ray.motion.features import rotate_yaw
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.quality import Quality, measure, rank, score
from hymotion_ray.motion.rotations import matrix_to_rot6d, resample
from hymotion_ray.motion.skeleton import Skeleton


def _moved(motion: Motion, offset: torch.Tensor) -> Motion:
    return Motion.from_rotations(motion.rot6d, motion.transl + offset, motion.skeleton, motion.fps)


def _travelling(motion: Motion, velocity: tuple[float, float, float]) -> Motion:
    """The motion carried along at `velocity` in m/s, feet and all."""
    seconds = torch.arange(motion.num_frames)[:, None] / motion.fps
    return _moved(motion, seconds * torch.tensor(velocity))


def test_standing_still_is_perfect(standing: Motion) -> None:
    quality = measure(standing)
    assert quality == Quality(skate=0, skate_speed=0, float=0, jitter=0, facing=None)
    assert score(quality) == 0
    assert quality.flags == ()


def test_sliding_feet_are_seen(standing: Motion) -> None:
    quality = measure(_travelling(standing, (0, 0, 0.8)))
    assert quality.skate == 1
    assert quality.skate_speed == pytest.approx(0.8, abs=1e-3)
    assert quality.facing == pytest.approx(1)
    assert quality.flags == ("slides",)
    slow = measure(_travelling(standing, (0, 0, 0.4)))
    assert slow.skate == 0
    assert slow.skate_speed == pytest.approx(0.4, abs=1e-3)


def test_sliding_in_the_air_is_no_sliding(standing: Motion) -> None:
    lifted = torch.zeros(60, 3)
    lifted[1:, 1] = 0.4
    quality = measure(_moved(_travelling(standing, (0, 0, 2)), lifted))
    assert quality.skate == 0
    assert quality.float > 0.9


def test_hovering_is_seen(standing: Motion) -> None:
    lifted = torch.zeros(60, 3)
    lifted[15:45, 1] = 0.3
    quality = measure(_moved(standing, lifted))
    assert quality.float == pytest.approx(0.5)
    assert quality.skate == 0


def test_a_lying_body_does_not_float(standing: Motion) -> None:
    rot6d = standing.rot6d.clone()
    rot6d[:, 0] = torch.tensor([1.0, 0, 0, 0, 0, -1])
    assert measure(replace(standing, rot6d=rot6d)).float == 0
    lying = Motion.from_rotations(rot6d, standing.transl, standing.skeleton, 30)
    assert measure(lying).float == 0


@pytest.mark.parametrize(
    ("velocity", "facing"), [((0, 0, 1.0), 1.0), ((0, 0, -1.0), -1.0), ((1.0, 0, 0), 0.0)]
)
def test_facing_is_told_from_travel(
    velocity: tuple[float, float, float], facing: float, standing: Motion
) -> None:
    quality = measure(_travelling(standing, velocity))
    assert quality.facing == pytest.approx(facing, abs=1e-6)
    assert ("backwards" in quality.flags) == (facing < -0.5)


def test_noise_is_jitter(standing: Motion) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(60, 3, generator=generator)
    small, large = (measure(_moved(standing, scale * noise)) for scale in (0.002, 0.004))
    assert large.jitter == pytest.approx(2 * small.jitter, rel=1e-3)
    # The third difference of noise of deviation s has deviation s * sqrt(20) on each of 3 axes.
    expected = 0.002 * 20**0.5 * (8 / torch.pi) ** 0.5 * 30**3 / 10
    assert small.jitter == pytest.approx(expected, rel=0.15)


def test_steady_acceleration_is_no_jitter(standing: Motion) -> None:
    seconds = torch.arange(60)[:, None] / 30
    quality = measure(_moved(standing, seconds**2 * torch.tensor([0.0, 0, 2])))
    assert quality.jitter == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("yaw", [0.3, 1.6, -2.8])
def test_turning_or_lifting_the_whole_clip_changes_nothing(yaw: float, skeleton: Skeleton) -> None:
    rot6d, transl = make_clip(120, seed=2)
    transl = transl + torch.arange(120)[:, None] / 30 * torch.tensor([0.2, 0, 0.9])
    before = measure(Motion.from_rotations(rot6d, transl, skeleton, 30))
    turned, place = rotate_yaw(rot6d, transl, skeleton, yaw)
    after = measure(Motion.from_rotations(turned, place + torch.tensor([3, 1.0, -2]), skeleton, 30))
    assert before.facing is not None
    for name in ("skate", "skate_speed", "float", "jitter", "facing"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), abs=1e-3), name


def test_frame_rate_hardly_matters(skeleton: Skeleton) -> None:
    seconds = torch.arange(121)[:, None] / 60
    sway = 0.1 * torch.sin(7 * seconds) * torch.tensor([0, 0, 1.0]) + seconds * torch.tensor(
        [0, 0, 1.0]
    )
    rot6d = torch.tensor([1.0, 0, 0, 1, 0, 0]).repeat(121, 22, 1)
    fast = Motion.from_rotations(rot6d, sway, skeleton, 60)
    rotations, transl = resample(fast.local_rotations(), fast.transl, 60, 30)
    slow = Motion.from_rotations(matrix_to_rot6d(rotations), transl, skeleton, 30)
    one, other = measure(fast), measure(slow)
    for name in ("skate", "skate_speed", "float", "jitter", "facing"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=0.05, abs=0.02), name


@pytest.mark.parametrize("num_frames", range(1, 6))
def test_the_shortest_clips_have_a_quality(num_frames: int, skeleton: Skeleton) -> None:
    quality = measure(Motion.from_rotations(*make_clip(num_frames), skeleton, 30))
    assert quality.facing is None
    assert score(quality) >= 0


def test_rank_puts_the_best_first_and_keeps_ties_in_order(standing: Motion) -> None:
    still = measure(standing)
    forwards = measure(_travelling(standing, (0, 0, 0.4)))
    backwards = measure(_travelling(standing, (0, 0, -0.4)))
    assert rank([backwards, still, forwards, still]) == [1, 3, 2, 0]
    backwards, forwards = (replace(still, facing=facing) for facing in (-1.0, 1.0))
    assert rank([backwards, forwards]) == [1, 0]
    assert rank([backwards, forwards], may_go_backwards=True) == [0, 1]
    worse = replace(still, skate=0.5), replace(still, float=0.5), replace(still, jitter=90.0)
    assert all(score(one) > score(still) for one in worse)
