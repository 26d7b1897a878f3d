"""Cutting takes, and placing the pieces where training starts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hymotion_ray.errors import InputError
from hymotion_ray.motion.canonical import MAX_FRAMES, Window, canonical_clip, windows
from hymotion_ray.motion.features import encode_features, rotate_yaw
from hymotion_ray.motion.ground import sole_heights
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import (
    heading,
    matrix_to_rot6d,
    rot6d_to_matrix,
    rotvec_to_matrix,
)
from hymotion_ray.motion.skeleton import PELVIS, generic_skeleton

SKELETON = generic_skeleton()


def wander(num_frames: int = 80, seed: int = 0) -> Motion:
    draw = torch.Generator().manual_seed(seed)
    turns = 0.05 * torch.randn(num_frames, 22, 3, generator=draw, dtype=torch.float64).cumsum(0)
    turns[:, PELVIS, 1] += 2.0
    transl = torch.randn(num_frames, 3, generator=draw, dtype=torch.float64).cumsum(0) * 0.05 + 3
    return Motion.from_rotations(
        matrix_to_rot6d(rotvec_to_matrix(turns)), transl, SKELETON, 30.0, {"prompt": "a walk"}
    )


def test_a_piece_faces_z_starts_at_the_origin_and_stands_on_the_floor() -> None:
    piece = canonical_clip(wander(), 13, 70)
    assert piece.num_frames == 57
    assert float(heading(piece.local_rotations()[0, PELVIS])) == pytest.approx(0, abs=1e-5)
    np.testing.assert_allclose(piece.transl[0, [0, 2]], 0, atol=1e-6)
    assert float(sole_heights(piece.joints, SKELETON).amin()) == pytest.approx(0, abs=1e-5)
    assert piece.meta["prompt"] == "a walk"


def test_where_and_which_way_a_take_was_recorded_does_not_matter() -> None:
    take = wander()
    rot6d, transl = rotate_yaw(take.rot6d.double(), take.transl.double(), SKELETON, 1.234)
    moved = Motion.from_rotations(rot6d, transl + torch.tensor([7.0, -2.0, 5.0]), SKELETON, 30.0)
    here, there = canonical_clip(take, 5, 60), canonical_clip(moved, 5, 60)
    np.testing.assert_allclose(here.joints, there.joints, atol=2e-5)


def test_twice_is_once() -> None:
    once = canonical_clip(wander())
    np.testing.assert_allclose(canonical_clip(once).joints, once.joints, atol=1e-5)


def test_clip_to_features_to_clip_is_the_identity() -> None:
    from hymotion_ray.motion.features import decode_features

    piece = canonical_clip(wander())
    rot6d, transl = decode_features(encode_features(piece.rot6d, piece.transl, SKELETON))
    back = Motion.from_rotations(rot6d, transl, SKELETON, 30.0)
    np.testing.assert_allclose(back.joints, piece.joints, atol=1e-5)
    np.testing.assert_allclose(rot6d_to_matrix(back.rot6d), rot6d_to_matrix(piece.rot6d), atol=1e-5)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (6, 5), (0, 81)])
def test_windows_outside_are_refused(start: int, stop: int) -> None:
    with pytest.raises(InputError, match="of a motion of 80"):
        canonical_clip(wander(), start, stop)


# --- cutting --------------------------------------------------------------------------------------


def test_without_captions_the_take_is_one_piece_in_even_windows() -> None:
    assert list(windows(200, [])) == [Window(0, 200)]
    assert list(windows(360, [])) == [Window(0, 360)]
    assert list(windows(361, [])) == [Window(0, 180), Window(180, 361)]
    assert [w.num_frames for w in windows(1000, [])] == [333, 334, 333]


def test_each_span_is_a_piece_with_its_own_captions_only() -> None:
    spans = [(0.0, math.inf), (1.0, 3.0), (1.0, 3.0), (2.5, 9.0), (0.0, 10.0)]
    cut = list(windows(300, spans))
    assert cut == [Window(0, 300, (0, 4)), Window(30, 90, (1, 2)), Window(75, 270, (3,))]


def test_a_long_span_gives_its_captions_to_every_window() -> None:
    cut = list(windows(3000, [(10.0, 60.0)]))
    assert [w.spans for w in cut] == [(0,)] * 5
    assert cut[0].start == 300
    assert cut[-1].stop == 1800


def test_short_pieces_come_marked() -> None:
    cut = list(windows(300, [(1.0, 1.5), (2.0, 4.0)]))
    assert [w.is_short for w in cut] == [True, False]


@given(
    st.integers(1, 5000),
    st.lists(st.tuples(st.floats(0, 200), st.floats(0, 200)).map(sorted), max_size=6),
)
def test_windows_stay_inside_cover_their_span_and_are_never_too_long(
    num_frames: int, spans: list[list[float]]
) -> None:
    cut = list(windows(num_frames, [(a, b) for a, b in spans]))
    assert all(0 <= w.start <= w.stop <= num_frames for w in cut)
    assert all(w.num_frames <= MAX_FRAMES for w in cut)
    assert {k for w in cut for k in w.spans} == set(range(len(spans)))
    by_span: dict[tuple[int, ...], int] = {}
    for w in cut:
        by_span[w.spans] = by_span.get(w.spans, 0) + w.num_frames
    for numbers, total in by_span.items():
        if numbers:
            first, last = (min(round(s * 30), num_frames) for s in spans[numbers[0]])
            assert total == last - first
        else:
            assert total == num_frames
