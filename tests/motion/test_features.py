"""The 201 numbers come back; turning, placing and mirroring do what they say to joints."""

from __future__ import annotations

import math

import pytest
import torch
from motion_clips import make_clip

from hymotion_ray.errors import InputError
from hymotion_ray.motion.features import (
    canonicalise,
    decode_features,
    encode_features,
    mirror,
    rotate_yaw,
)
from hymotion_ray.motion.ground import joint_floor
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import heading
from hymotion_ray.motion.skeleton import MIRROR_PAIRS, Skeleton


def test_features_come_back(crooked: Skeleton) -> None:
    rot6d, transl = make_clip(20)
    features = encode_features(rot6d, transl, crooked)
    assert features.shape == (20, 201)
    back, place = decode_features(features)
    assert torch.equal(back, rot6d)
    assert torch.equal(place, transl)


def test_positions_are_joints_seen_from_the_pelvis(crooked: Skeleton) -> None:
    rot6d, transl = make_clip(6)
    positions = encode_features(rot6d, transl, crooked)[:, 135:].unflatten(1, (22, 3))
    motion = Motion.from_rotations(rot6d, transl, crooked, 30)
    assert bool((positions[:, 0] == 0).all())
    expected = motion.joints[:, :22] - motion.joints[:, :1]
    torch.testing.assert_close(positions, expected, atol=1e-5, rtol=0)


def test_other_widths_are_refused() -> None:
    with pytest.raises(InputError, match="201"):
        decode_features(torch.zeros(3, 200))


def test_turning_turns_every_joint(crooked: Skeleton) -> None:
    clip = make_clip(8)
    before = Motion.from_rotations(*clip, crooked, 30).joints
    after = Motion.from_rotations(*rotate_yaw(*clip, crooked, 0.7), crooked, 30).joints
    c, s = math.cos(0.7), math.sin(0.7)
    turn = torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]])
    torch.testing.assert_close(after, before @ turn.mT, atol=1e-5, rtol=0)


def test_canonical_clips_face_front_on_the_floor_at_the_origin(crooked: Skeleton) -> None:
    clip = make_clip(12, seed=5)
    placed = canonicalise(*rotate_yaw(*clip, crooked, 2.0), crooked)
    motion = Motion.from_rotations(*placed, crooked, 30)
    assert float(heading(motion.local_rotations()[0, 0])) == pytest.approx(0, abs=1e-5)
    assert motion.transl[0, [0, 2]].tolist() == [0, 0]
    assert float(joint_floor(motion.joints, crooked)) == pytest.approx(0, abs=1e-5)
    again = canonicalise(*placed, crooked)
    for once, twice in zip(placed, again, strict=True):
        torch.testing.assert_close(once, twice, atol=2e-6, rtol=0)


def test_mirroring_twice_gives_the_clip_back(crooked: Skeleton) -> None:
    rot6d, transl = make_clip(9)
    back, place = mirror(*mirror(rot6d, transl, crooked), crooked)
    assert torch.equal(back, rot6d)
    torch.testing.assert_close(place, transl, atol=1e-6, rtol=0)


def test_a_symmetric_body_is_mirrored_joint_by_joint(skeleton: Skeleton) -> None:
    clip = make_clip(9)
    before = Motion.from_rotations(*clip, skeleton, 30).joints
    after = Motion.from_rotations(*mirror(*clip, skeleton), skeleton, 30).joints
    order = list(range(52))
    for left, right in MIRROR_PAIRS:
        order[left], order[right] = right, left
    expected = before[:, order] * torch.tensor([-1.0, 1, 1])
    torch.testing.assert_close(after, expected, atol=1e-5, rtol=0)
