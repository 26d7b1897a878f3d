"""Laws of the measures of a clip: what they must not see, what they must, and known answers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from motion_clips import make_clip
from scipy.optimize import minimize

from hymotion_ray.motion.capsules import overlap_share, segment_distance
from hymotion_ray.motion.features import rotate_yaw
from hymotion_ray.motion.metrics import at_rate, clip_metrics, sliding_against
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d
from hymotion_ray.motion.skeleton import Skeleton

YAW = 1.1


def _travelling(motion: Motion, velocity: tuple[float, float, float]) -> Motion:
    seconds = torch.arange(motion.num_frames)[:, None] / motion.fps
    transl = motion.transl + seconds * torch.tensor(velocity)
    return Motion.from_rotations(motion.rot6d, transl, motion.skeleton, motion.fps)


def _turned(motion: Motion, joint: int, axis: int, degrees: float) -> Motion:
    """The motion with one joint set to a turn about an axis."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    matrix = torch.eye(3)
    a, b = (axis + 1) % 3, (axis + 2) % 3
    matrix[a, a], matrix[a, b], matrix[b, a], matrix[b, b] = c, -s, s, c
    rot6d = motion.rot6d.clone()
    rot6d[:, joint] = matrix_to_rot6d(matrix)
    return Motion.from_rotations(rot6d, motion.transl, motion.skeleton, motion.fps)


def test_a_body_at_rest_has_nothing_to_report(standing: Motion) -> None:
    found = vars(clip_metrics(standing))
    assert found.pop("facing") is None
    assert found.pop("static") == 1
    assert found == pytest.approx(dict.fromkeys(found, 0), abs=1e-6)


def test_where_a_clip_is_and_where_it_faces_changes_nothing(skeleton: Skeleton) -> None:
    rot6d, transl = make_clip(90, seed=2)
    clip = Motion.from_rotations(rot6d, transl, skeleton, 30)
    turned, moved = rotate_yaw(rot6d, transl, skeleton, torch.tensor(YAW))
    other = Motion.from_rotations(turned, moved + torch.tensor([3.0, 0.4, -2]), skeleton, 30)
    found, expected = (
        {name: value for name, value in vars(clip_metrics(m)).items() if value is not None}
        for m in (other, clip)
    )
    assert found == pytest.approx(expected, abs=2e-3, rel=1e-3)


def test_sliding_is_measured_by_every_rule(standing: Motion) -> None:
    found = clip_metrics(_travelling(standing, (0, 0, 0.8)))
    assert (found.skate, found.skate_contact, found.static) == (1, 1, 0)
    assert found.skate_speed == pytest.approx(0.8, rel=1e-4)
    assert found.slide == pytest.approx(1000 * 0.8 / 20, rel=1e-4)
    assert found.dynamic_mm == pytest.approx(40, rel=1e-4)  # and nothing against the pelvis
    assert found.speed_peak == pytest.approx(0.8, rel=1e-4)


def test_measures_by_the_frame_hold_at_every_rate(standing: Motion) -> None:
    fast = clip_metrics(_travelling(replace(standing, fps=60.0), (0.3, 0, 0.4)))
    slow = clip_metrics(_travelling(replace(standing, fps=20.0), (0.3, 0, 0.4)))
    for name in ("slide", "dynamic_mm", "skate_speed", "speed_peak"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), rel=1e-3), name


def test_hovering_and_sinking_are_told_apart(standing: Motion) -> None:
    lifted = standing.transl.clone()
    lifted[20:30, 1] += 0.3
    lifted[40:46, 1] -= 0.02
    clip = Motion.from_rotations(standing.rot6d, lifted, standing.skeleton, 30)
    found = clip_metrics(clip)
    assert found.hover == pytest.approx(0.3 * 10 / 60, rel=1e-4)
    assert found.penetration == pytest.approx(0.02 * 6 / 60, rel=1e-3)


def test_limits_of_joints(standing: Motion) -> None:
    knee = 4
    assert clip_metrics(_turned(standing, knee, 0, 150)).limit_excess == 0
    assert clip_metrics(_turned(standing, knee, 0, 170)).limit_excess == pytest.approx(10, abs=1e-3)


def test_legs_through_each_other_are_an_overlap(standing: Motion) -> None:
    left_hip = 1
    assert clip_metrics(standing).overlap == 0
    assert clip_metrics(_turned(standing, left_hip, 2, -17)).overlap == 1
    assert clip_metrics(_turned(standing, left_hip, 2, 17)).overlap == 0


def test_feet_off_the_floor_are_unsupported_while_they_move(standing: Motion) -> None:
    raised = standing.transl.clone()
    raised[20:40, 1] += torch.tensor([0.3, 0.6] * 10)
    clip = Motion.from_rotations(standing.rot6d, raised, standing.skeleton, 20)
    assert clip_metrics(clip).unsupported == pytest.approx(20 / 59, abs=1 / 59)


def test_a_loop_closes_wherever_it_ends(standing: Motion, skeleton: Skeleton) -> None:
    rot6d, transl = make_clip(40, seed=5)
    clip = Motion.from_rotations(rot6d, transl, skeleton, 30)
    turned, moved = rotate_yaw(rot6d[:1], transl[:1], skeleton, torch.tensor(YAW))
    closed = Motion.from_rotations(
        torch.cat([rot6d, turned]), torch.cat([transl, moved + 1]), skeleton, 30
    )
    assert clip_metrics(closed).loop_gap == pytest.approx(0, abs=1e-5)
    assert clip_metrics(clip).loop_gap > 0.01


def test_a_cut_is_seen(skeleton: Skeleton) -> None:
    rot6d, transl = make_clip(60, seed=6, speed=0.01)
    smooth = Motion.from_rotations(rot6d, torch.zeros_like(transl), skeleton, 20)
    cut = torch.zeros_like(transl)
    cut[30:, 0] = 0.5
    jumped = Motion.from_rotations(rot6d, cut, skeleton, 20)
    assert clip_metrics(jumped).seam == pytest.approx(500, rel=0.1)
    assert clip_metrics(smooth).seam < 50


@pytest.mark.parametrize("num_frames", [1, 2, 3])
def test_the_shortest_clips_are_measured(num_frames: int, skeleton: Skeleton) -> None:
    rot6d, transl = make_clip(num_frames)
    found = vars(clip_metrics(Motion.from_rotations(rot6d, transl, skeleton, 30)))
    assert all(value is None or math.isfinite(value) for value in found.values())


def test_other_rates_keep_straight_lines() -> None:
    line = np.linspace([0.0, 1.0, 2.0], [3.0, 1.0, 5.0], 31)[:, None]
    slow = at_rate(line, 30, 20)
    assert len(slow) == 21
    assert slow[:, 0, 0] == pytest.approx(np.linspace(0, 3, 21))
    assert at_rate(slow, 20, 30)[:, 0, 2] == pytest.approx(line[:, 0, 2])


def test_sliding_against_a_reference_counts_where_it_stands(standing: Motion) -> None:
    assert sliding_against(_travelling(standing, (0.3, 0, 0)), standing) == pytest.approx(
        0.01, rel=1e-3
    )
    assert sliding_against(standing, standing) == 0
    assert sliding_against(standing, _travelling(standing, (0.6, 0, 0))) is None


def test_distance_of_segments_is_the_smallest_there_is() -> None:
    generator = np.random.default_rng(0)
    ends = generator.normal(size=(4, 40, 3))
    ends[1, :5] = ends[0, :5]  # points
    ends[3, 3:8] = ends[2, 3:8]
    ends[3, 10] = ends[2, 10] + (ends[1, 10] - ends[0, 10])  # parallel
    found = segment_distance(*ends)
    for k in range(40):
        a0, a1, b0, b1 = ends[:, k]

        def apart(x, a0=a0, a1=a1, b0=b0, b1=b1):
            return np.linalg.norm(a0 + x[0] * (a1 - a0) - b0 - x[1] * (b1 - b0))

        best = min(
            minimize(apart, start, bounds=[(0, 1), (0, 1)]).fun
            for start in ([0.5, 0.5], [0, 1], [1, 0])
        )
        assert found[k] == pytest.approx(best, abs=1e-4), k


def test_overlap_of_a_body_at_rest_is_none(standing: Motion, crooked: Skeleton) -> None:
    assert overlap_share(standing.joints[:, :22].double().numpy()) == 0
