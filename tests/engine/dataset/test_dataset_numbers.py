"""Moments of features and names of motions: exact, whatever the order or the mirror."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hymotion_ray.engine.dataset.likeness import likeness
from hymotion_ray.engine.dataset.moments import Moments
from hymotion_ray.engine.dataset.part import _features
from hymotion_ray.engine.dataset.synthetic import synthetic_clip
from hymotion_ray.formats.sources.fit import to_motion
from hymotion_ray.motion.features import canonicalise, encode_features, mirror, rotate_yaw
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import generic_skeleton

SKELETON = generic_skeleton()


def motion(seed: int) -> Motion:
    clip = synthetic_clip(np.random.default_rng(seed), "f", seed)
    made, _ = to_motion(clip, SKELETON)
    rot6d, transl = canonicalise(made.rot6d.double(), made.transl.double(), SKELETON)
    return Motion.from_rotations(rot6d, transl, SKELETON, 30)


def test_moments_of_parts_are_those_of_the_whole_in_any_order():
    draw = np.random.default_rng(0)
    frames = draw.normal(1e3, 1e-2, (500, 7)) * np.arange(7)
    parts = [Moments.of(part) for part in np.split(frames, [3, 50, 51, 400])]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        total = Moments.none(7)
        for k in order:
            total = total.merged(parts[k])
        assert total.count == 500
        np.testing.assert_allclose(total.mean, frames.mean(0), rtol=1e-12)
        np.testing.assert_allclose(total.std, frames.std(0), rtol=1e-8, atol=1e-12)


def test_moments_travel_as_bytes():
    moments = Moments.of(np.random.default_rng(1).normal(size=(9, 201)))
    back = Moments.from_bytes(moments.to_bytes())
    assert back.count == 9
    assert np.array_equal(back.mean, moments.mean)
    assert np.array_equal(back.squares, moments.squares)
    assert not Moments.none(3).std.any()


def test_features_from_known_joints_are_the_encoders():
    made = motion(3)
    encoded = encode_features(made.rot6d, made.transl, SKELETON).numpy()
    np.testing.assert_allclose(_features(made), encoded, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_a_mirrored_take_is_known_as_the_mirror_of_the_other(seed):
    """Mirrored at its source, where it stands turned and elsewhere, and then made canonical."""
    one = motion(seed)
    turned = rotate_yaw(one.rot6d.double(), one.transl.double() + 2.5, SKELETON, 1.1)
    rot6d, transl = canonicalise(*mirror(*turned, SKELETON), SKELETON)
    other = Motion.from_rotations(rot6d, transl, SKELETON, 30)
    own, mirrored = likeness(one)
    assert likeness(other) == (mirrored, own)
    assert own != mirrored


def test_other_takes_and_lengths_have_other_names():
    names = {likeness(motion(seed))[0] for seed in range(30)}
    assert len(names) == 30
    one = motion(0)
    shorter = Motion.from_rotations(one.rot6d[:-1], one.transl[:-1], SKELETON, 30)
    assert likeness(shorter)[0] != likeness(one)[0]


def test_a_copy_that_differs_by_rounding_alone_is_the_same():
    one = motion(4)
    noise = 1e-7 * torch.randn(one.rot6d.shape, generator=torch.Generator().manual_seed(0))
    other = Motion.from_rotations(one.rot6d + noise, one.transl, SKELETON, 30)
    assert likeness(other) == likeness(one)
