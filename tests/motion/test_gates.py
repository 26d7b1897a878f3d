"""Each gate holds back the clip it is for, says why, and lets an honest clip pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hymotion_ray.config.ingest import GateConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.motion.gates import (
    GRAVITY,
    fall_share,
    is_finite,
    judge,
    mass_centre,
    measure_clip,
)
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d, rotvec_to_matrix
from hymotion_ray.motion.skeleton import JOINT_NAMES, generic_skeleton

FPS = 30
GATES = GateConfig()
SKELETON = generic_skeleton()


def motion(num_frames: int = 60, lift=0.0, x=0.0, turns=None, flip: float = 0.0) -> Motion:
    """A body that waves; lift and x (scalar or (L,)) move it, turns are rotvecs by joint."""
    times = torch.arange(num_frames) / FPS
    rotvec = torch.zeros(num_frames, 22, 3)
    rotvec[:, JOINT_NAMES.index("L_Shoulder"), 2] = 0.8 * torch.sin(3 * times)
    rotvec[:, 0, 0] = flip
    for name, values in (turns or {}).items():
        rotvec[:, JOINT_NAMES.index(name)] = torch.as_tensor(values, dtype=torch.float32)
    transl = torch.zeros(num_frames, 3)
    transl[:, 1] = torch.as_tensor(lift, dtype=torch.float32)
    transl[:, 0] = torch.as_tensor(x, dtype=torch.float32)
    rot6d = matrix_to_rot6d(rotvec_to_matrix(rotvec))
    return Motion.from_rotations(rot6d, transl, SKELETON, FPS)


def codes(clip: Motion, gates: GateConfig = GATES, **numbers: float) -> list[str]:
    return [f.code for f in judge(measure_clip(clip, **numbers), gates)]


def jump(rate: float = 1.0, scale: float = 1.0) -> Motion:
    """A jump of 0.4 m and what comes before and after; played `rate` times as fast."""
    flight = 2 * np.sqrt(2 * 0.4 / GRAVITY)
    times = np.arange(120) / FPS * rate - 1.0
    height = GRAVITY / 2 * np.clip(times, 0, flight) * np.clip(flight - times, 0, flight)
    return motion(120, lift=height * scale)


def test_an_honest_clip_passes_every_gate():
    assert codes(motion()) == []


def test_a_short_clip_is_held_back_with_its_length():
    (finding,) = judge(measure_clip(motion(19)), GATES)
    assert finding.code == "too_short"
    assert "19 frames" in finding.message
    assert codes(motion(20)) == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_seen_wherever_it_stands(bad):
    values = torch.zeros(5, 3)
    assert is_finite(values, values.numpy())
    values[3, 1] = bad
    assert not is_finite(torch.zeros(2), values)


def test_a_jump_falls_by_gravity_at_its_true_rate():
    assert measure_clip(jump()).fall == pytest.approx(1.0, abs=0.02)
    assert codes(jump()) == []


@pytest.mark.parametrize(("rate", "expected"), [(0.5, 0.25), (2.0, 4.0)])
def test_a_jump_of_a_mistaken_rate_falls_too_slowly_or_too_fast(rate, expected):
    numbers = measure_clip(jump(rate))
    assert numbers.fall == pytest.approx(expected, rel=0.05)
    (finding,) = judge(numbers, GATES)
    assert finding.code == "wrong_fps"
    assert f"{numbers.fall:.2f} of gravity" in finding.message


def test_gravity_is_judged_at_the_size_of_the_source():
    """A clip of a child, blown up to our body, falls too fast here and right in its own metres."""
    blown_up = jump(scale=3.0)
    assert codes(blown_up, scale=3.0) == []
    assert codes(blown_up) == ["wrong_fps"]


def test_standing_on_a_box_is_no_flight():
    """High up and slowly bobbing, feet still on the box: no measure of gravity."""
    times = np.arange(120) / FPS
    body = np.repeat(SKELETON.rest[None, :22].astype(np.float64), 120, axis=0)
    upper = [j for j in range(22) if j not in (7, 8, 10, 11)]
    body[:, upper, 1] += 0.15 * np.sin(2 * times)[:, None]
    clearance = np.where((times > 0.5) & (times < 3.5), 0.4, 0.0)
    assert fall_share(body, clearance, FPS) is None


def test_the_mass_centre_of_a_standing_body_lies_at_the_navel():
    """Winter: 53 to 57 % of the standing height above the soles."""
    body = SKELETON.rest[None, :22].astype(np.float64)
    soles = body[0, 10, 1] - SKELETON.toe_height
    share = (mass_centre(body)[0, 1] - soles) / 1.73
    assert 0.53 < share < 0.61


def test_travel_faster_than_a_sprinter_is_a_mistaken_rate():
    assert "wrong_fps" in codes(motion(x=np.arange(60) * 12.0 / FPS))
    assert "wrong_fps" not in codes(motion(x=np.arange(60) * 9.0 / FPS))


def test_a_leap_between_two_frames_is_an_outlier():
    x = np.zeros(60)
    x[30:] = 0.6
    assert codes(motion(x=x)) == ["speed_outlier"]


def test_a_joint_that_flips_in_one_frame_is_an_outlier():
    turns = np.zeros((60, 3))
    turns[30, 0] = 3.0
    assert codes(motion(turns={"R_Elbow": turns})) == ["speed_outlier"]


def test_a_still_body_is_static_and_says_how_still():
    still = Motion.from_rotations(
        motion(60).rot6d[:1].repeat(60, 1, 1), torch.zeros(60, 3), SKELETON, FPS
    )
    (finding,) = judge(measure_clip(still), GATES)
    assert (finding.code, finding.value) == ("static", 1.0)


def test_a_body_on_its_head_is_upside_down():
    assert "upside_down" in codes(motion(flip=3.14))
    assert "upside_down" not in codes(motion(flip=1.3))


def test_a_poor_fit_is_held_back():
    assert codes(motion(), fit_error=0.2) == ["fit_error"]
    assert codes(motion(), fit_error=0.1) == []


def test_a_body_drawn_over_the_floor_slides():
    assert codes(motion(x=np.arange(60) * 1.5 / FPS)) == ["sliding"]


def test_a_body_above_its_floor_floats():
    lift = np.full(60, 0.3)
    lift[0] = 0.0
    assert "floating" in codes(motion(lift=lift))
    lying = motion(flip=-1.5, lift=0.0)
    assert "floating" not in codes(lying)


def test_limits_are_the_configs():
    gates = GateConfig(max_skate=1.0)
    assert codes(motion(x=np.arange(60) * 1.5 / FPS), gates) == []
    for name, value in (("max_skate", 0), ("max_speed_m_s", -1), ("min_frames", 5)):
        with pytest.raises(ConfigError, match=name):
            GateConfig(**{name: value})


def test_one_frame_can_be_judged():
    assert codes(motion(1)) == ["too_short", "static"]
