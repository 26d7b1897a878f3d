"""Measures of sets: Fréchet in closed form, moments by parts, ranking and spread of embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from motion_clips import make_clip

from hymotion_ray.motion.features import rotate_yaw
from hymotion_ray.motion.metrics_embedding import (
    diversity,
    matching_distance,
    multimodality,
    r_precision,
    repeated,
)
from hymotion_ray.motion.metrics_frechet import FEATURES, Moments, frechet_distance
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import Skeleton


def _moments(mean: np.ndarray, covariance: np.ndarray) -> Moments:
    return Moments(11, mean, covariance * 10)


def test_distance_of_normal_distributions_has_a_closed_form() -> None:
    """For covariances that share their axes: |m1 - m2|^2 + sum (s1 - s2)^2."""
    generator = np.random.default_rng(0)
    axes, _ = np.linalg.qr(generator.normal(size=(6, 6)))
    first, second = generator.uniform(0, 3, size=(2, 6))
    first[2] = second[3] = 0  # singular
    means = generator.normal(size=(2, 6))
    found = frechet_distance(
        _moments(means[0], axes @ np.diag(first**2) @ axes.T),
        _moments(means[1], axes @ np.diag(second**2) @ axes.T),
    )
    expected = np.square(means[0] - means[1]).sum() + np.square(first - second).sum()
    assert found == pytest.approx(expected, rel=1e-6)


def test_distance_of_samples_nears_that_of_their_distributions() -> None:
    generator = np.random.default_rng(1)
    first = Moments.of(generator.normal(0, 1, size=(20_000, 4)))
    second = Moments.of(generator.normal(0.5, 2, size=(20_000, 4)))
    assert frechet_distance(first, second) == pytest.approx(4 * (0.25 + 1), rel=0.05)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(first, second) == pytest.approx(frechet_distance(second, first))


def test_moments_by_parts_are_those_of_the_whole() -> None:
    rows = np.random.default_rng(2).normal(3, 2, size=(101, 5)) ** 3
    parts = [Moments.of(part) for part in (rows[:1], rows[1:1], rows[1:40], rows[40:])]
    total = sum(parts[1:], start=parts[0])
    assert total.count == 101
    assert total.mean == pytest.approx(rows.mean(axis=0))
    assert total.covariance == pytest.approx(np.cov(rows, rowvar=False))
    own = total.scaled_by(total)
    assert np.diag(own.covariance) == pytest.approx(np.ones(5))


@pytest.mark.parametrize("name", FEATURES)
def test_features_do_not_see_where_a_clip_faces(name: str, skeleton: Skeleton) -> None:
    rot6d, transl = make_clip(60, seed=3)
    turned, moved = rotate_yaw(rot6d, transl, skeleton, torch.tensor(0.7))
    first = FEATURES[name](Motion.from_rotations(rot6d, transl, skeleton, 30))
    second = FEATURES[name](Motion.from_rotations(turned, moved + 2, skeleton, 30))
    assert first == pytest.approx(second, abs=1e-3)
    assert np.isfinite(
        FEATURES[name](Motion.from_rotations(rot6d[:1], transl[:1], skeleton, 30))
    ).all()


# --- embeddings -----------------------------------------------------------------------------------


def _draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_texts_that_are_their_clips_are_always_found() -> None:
    motions = _draw().normal(size=(100, 8))
    assert r_precision(motions, motions, _draw()) == [1, 1, 1]
    assert matching_distance(motions, motions) == 0
    assert matching_distance(motions, motions + 1) == pytest.approx(np.sqrt(8))


def test_embeddings_without_meaning_are_found_by_chance() -> None:
    texts, motions = _draw(1).normal(size=(2, 3200, 8))
    found = r_precision(texts, motions, _draw(2))
    assert found == pytest.approx([1 / 32, 2 / 32, 3 / 32], abs=0.02)
    constant = np.ones((64, 8))
    assert r_precision(constant, constant, _draw()) == [0, 0, 0]


def test_few_clips_make_one_pool() -> None:
    motions = np.array([[0.0], [10], [11], [30]])
    texts = motions[[0, 2, 1, 3]]
    assert r_precision(texts, motions, _draw()) == [0.5, 1.0, 1.0]


def test_diversity_and_multimodality_are_mean_distances() -> None:
    """Two points of a coordinate with deviation s are 2 s / sqrt(pi) apart on average."""
    motions = _draw(3).normal(0, 2, size=(4000, 1))
    estimate = repeated(lambda g: diversity(motions, g), len(motions))
    assert estimate.mean == pytest.approx(4 / np.sqrt(np.pi), rel=0.05)
    assert 0 < estimate.ci95 < 0.2
    assert repeated(lambda g: diversity(motions, g), 4000) == estimate
    assert diversity(np.array([[0.0], [1.0]]), _draw()) == 1
    texts = [np.array([[0.0], [1.0]]), np.array([[5.0], [8.0]])]
    assert multimodality(texts, _draw()) == 2
