"""The tree is the golden files' tree; the generic body is symmetric and sized by its sources."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hymotion_ray.errors import InputError
from hymotion_ray.motion.skeleton import (
    JOINT_NAMES,
    MIRROR_PAIRS,
    PARENTS,
    Skeleton,
    generic_skeleton,
)

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("body", sorted(GOLDEN.glob("*/body")), ids=lambda p: p.parent.name)
def test_names_and_parents_are_the_golden_ones(body: Path) -> None:
    assert json.loads((body / "joint_names.json").read_text()) == list(JOINT_NAMES)
    assert np.fromfile(body / "kintree.bin", "<i4").tolist() == list(PARENTS)


def test_parents_come_before_children() -> None:
    assert all(parent < joint for joint, parent in enumerate(PARENTS))


def test_mirror_pairs_join_left_and_right_of_one_part() -> None:
    for left, right in MIRROR_PAIRS:
        assert JOINT_NAMES[left] == "L" + JOINT_NAMES[right][1:]
    assert len({joint for pair in MIRROR_PAIRS for joint in pair}) == 52 - 6


def test_generic_body_is_symmetric_and_of_published_size(skeleton: Skeleton) -> None:
    for left, right in MIRROR_PAIRS:
        np.testing.assert_array_equal(skeleton.rest[left] * (-1, 1, 1), skeleton.rest[right])
    lone = [j for j, name in enumerate(JOINT_NAMES) if name[1] != "_"]
    assert np.all(skeleton.rest[lone, 0] == 0)
    assert skeleton.leg_length == pytest.approx((0.530 - 0.039) * 1.73, abs=1e-6)
    assert skeleton.ankle_height == pytest.approx(0.039 * 1.73, abs=1e-6)
    sole = skeleton.rest[7, 1] - skeleton.ankle_height
    assert skeleton.rest[1, 1] - sole == pytest.approx(0.530 * 1.73, abs=1e-6)
    assert skeleton.rest[16, 1] - sole == pytest.approx(0.818 * 1.73, abs=1e-6)
    assert np.ptp(skeleton.rest[[20, 21], 0]) == pytest.approx(2 * 0.461 * 1.73, abs=1e-6)


def test_generic_fingers_lie_in_order_from_thumb_side_to_little_finger(skeleton: Skeleton) -> None:
    place = {name: skeleton.rest[j] for j, name in enumerate(JOINT_NAMES)}
    sides = [place[f"L_{finger}1"][2] for finger in ("Thumb", "Index", "Middle", "Ring", "Pinky")]
    assert sides == sorted(sides, reverse=True)
    for finger in ("Index", "Middle", "Ring", "Pinky", "Thumb"):
        reach = [place[f"L_{finger}{link}"][0] for link in (1, 2, 3)]
        assert reach == sorted(reach)
        assert reach[-1] - place["L_Wrist"][0] < 0.108 * 1.73


def test_soles_of_the_measured_body(skeleton: Skeleton) -> None:
    """A leg of 0.7795 m whose ankle rests 7.2 cm above its toe stands 0.105 and 0.033 m high."""
    rest = skeleton.rest * (0.7795 / skeleton.leg_length)
    rest[[10, 11], 1] = rest[[7, 8], 1] - 0.072
    body = Skeleton(rest)
    assert body.ankle_height == pytest.approx(0.105, abs=1e-6)
    assert body.toe_height == pytest.approx(0.033, abs=1e-6)


def test_soles_grow_with_the_body(skeleton: Skeleton) -> None:
    double = Skeleton(skeleton.rest * 2)
    assert double.leg_length == pytest.approx(2 * skeleton.leg_length)
    assert double.ankle_height == pytest.approx(2 * skeleton.ankle_height)
    assert double.toe_height == pytest.approx(2 * skeleton.toe_height)


@pytest.mark.parametrize("rest", [np.zeros((22, 3)), np.full((52, 3), np.nan)])
def test_bad_rest_positions_are_refused(rest: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"\(52, 3\)"):
        Skeleton(rest)


def test_rest_positions_cannot_be_changed() -> None:
    body = generic_skeleton()
    with pytest.raises(ValueError, match="read-only"):
        body.rest[0, 0] = 1
    assert body.same_as(generic_skeleton())
    assert not body.same_as(Skeleton(body.rest * 2))
