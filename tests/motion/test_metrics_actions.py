"""Actions by statistics: bodies that do one thing pass its test, and not the others'."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hymotion_ray.motion.metrics_actions import ACTIONS, Statistics, statistics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d

L_ARM, R_ARM, R_ELBOW = 16, 17, 19
NUM_FRAMES, FPS = 150, 30


def _about(axis: int, radians: float) -> torch.Tensor:
    matrix = torch.eye(3)
    a, b = (axis + 1) % 3, (axis + 2) % 3
    c, s = math.cos(radians), math.sin(radians)
    matrix[a, a], matrix[a, b], matrix[b, a], matrix[b, b] = c, -s, s, c
    return matrix_to_rot6d(matrix)


@pytest.fixture
def relaxed(standing: Motion) -> Motion:
    """Five seconds of a standing body with its arms down."""
    rot6d = standing.rot6d[:1].repeat(NUM_FRAMES, 1, 1)
    rot6d[:, L_ARM], rot6d[:, R_ARM] = _about(2, -1.3), _about(2, 1.3)
    return Motion.from_rotations(
        rot6d, standing.transl[:1].repeat(NUM_FRAMES, 1), standing.skeleton, FPS
    )


def _moved(motion: Motion, offsets: torch.Tensor) -> Motion:
    return Motion.from_rotations(motion.rot6d, motion.transl + offsets, motion.skeleton, FPS)


def _passed(motion: Motion) -> set[str]:
    found = statistics(motion)
    return {name for name, (_, test) in ACTIONS.items() if test(found)}


def _seconds() -> torch.Tensor:
    return torch.arange(NUM_FRAMES) / FPS


def test_standing_is_no_action(relaxed: Motion) -> None:
    assert _passed(relaxed) == set()


def test_pace_tells_walking_from_running(relaxed: Motion) -> None:
    ahead = torch.zeros(NUM_FRAMES, 3)
    ahead[:, 2] = 1.2 * _seconds()
    assert _passed(_moved(relaxed, ahead)) == {"walk"}
    assert statistics(_moved(relaxed, ahead)).forward == pytest.approx(1.2 * 149 / 30)
    assert "run" in _passed(_moved(relaxed, 3 * ahead))
    assert _passed(_moved(relaxed, -ahead)) == set()


def test_airtime_is_a_jump(relaxed: Motion) -> None:
    up = torch.zeros(NUM_FRAMES, 3)
    up[60:72, 1] = 0.4
    assert _passed(_moved(relaxed, up)) == {"jump"}
    assert statistics(_moved(relaxed, up)).air == pytest.approx(12 / FPS)


def _waving(motion: Motion, swing: float) -> Motion:
    """The right forearm up and swinging so many radians to either side, once a second."""
    rot6d = motion.rot6d.clone()
    rot6d[:, R_ARM] = _about(2, 0.2)
    for frame in range(NUM_FRAMES):
        angle = -1.5 + swing * math.sin(2 * math.pi * frame / FPS)
        rot6d[frame, R_ELBOW] = _about(2, angle)
    return Motion.from_rotations(rot6d, motion.transl, motion.skeleton, FPS)


def test_a_hand_that_swings_while_up_waves(relaxed: Motion) -> None:
    waving = _waving(relaxed, 0.6)
    assert "wave" in _passed(waving)
    assert 8 <= statistics(waving).swings <= 10  # twice a second, five seconds
    still = statistics(_waving(relaxed, 0.0))
    assert still.raised == pytest.approx(5)
    assert still.swings == 0
    assert "wave" not in _passed(_waving(relaxed, 0.0))


def test_a_low_pelvis_under_an_upright_head_sits(relaxed: Motion) -> None:
    rot6d = relaxed.rot6d.clone()
    rot6d[:, [1, 2]], rot6d[:, [4, 5]] = _about(0, -math.pi / 2), _about(0, math.pi / 2)
    seated = Motion.from_rotations(rot6d, relaxed.transl, relaxed.skeleton, FPS)
    assert "sit" in _passed(seated)
    ahead = torch.zeros(NUM_FRAMES, 3)
    ahead[:, 2] = 1.0 * _seconds()
    assert "sit" not in _passed(_moved(seated, ahead))


def test_turns_have_a_side(relaxed: Motion) -> None:
    rot6d = relaxed.rot6d.clone()
    for frame in range(NUM_FRAMES):
        rot6d[frame, 0] = _about(1, math.radians(frame / (NUM_FRAMES - 1) * 400))
    left = Motion.from_rotations(rot6d, relaxed.transl, relaxed.skeleton, FPS)
    found = statistics(left)
    assert found.turn == pytest.approx(400, abs=1)
    assert found.turned == pytest.approx(400, abs=1)
    assert "turn_left" in _passed(left)
    assert "turn_right" not in _passed(left)


def test_one_frame_has_statistics(relaxed: Motion) -> None:
    short = replace(
        relaxed,
        rot6d=relaxed.rot6d[:1],
        transl=relaxed.transl[:1],
        joints=relaxed.joints[:1],
    )
    found = statistics(short)
    assert isinstance(found, Statistics)
    assert np.isfinite(list(vars(found).values())).all()
