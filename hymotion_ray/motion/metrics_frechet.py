"""Fréchet distance between two sets of clips, and features of joints to take it on. No network.

Knows mean and covariance of rows, gathered part by part in bounded memory, and two hand-made
descriptions of a clip. What is measured on those is not the FID of papers, which is defined on the
features of one trained evaluator: it carries the features' name instead.

Shape letters: L frames, J = 22 joints, F features, N clips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import JOINT_NAMES, NUM_BODY_JOINTS, PELVIS

Array = NDArray[np.float64]


@dataclass
class Moments:
    """Count, mean (F,) and scatter (F, F) of rows seen so far; two can be joined."""

    count: int
    mean: Array
    scatter: Array
    """Sum over rows of the outer product of their distance from the mean."""

    @classmethod
    def of(cls, rows: Array) -> Moments:
        """The moments of rows (N, F)."""
        rows = np.asarray(rows, dtype=np.float64)
        mean = rows.mean(axis=0) if len(rows) else np.zeros(rows.shape[1])
        apart = rows - mean
        return cls(len(rows), mean, apart.T @ apart)

    def __add__(self, other: Moments) -> Moments:
        """Both together, by the pairwise update of Chan, Golub and LeVeque (1979)."""
        count = self.count + other.count
        if not self.count or not other.count:
            return other if not self.count else self
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        across = np.outer(apart, apart) * (self.count * other.count / count)
        return Moments(count, mean, self.scatter + other.scatter + across)

    @property
    def covariance(self) -> Array:
        """Covariance (F, F), over count - 1."""
        return self.scatter / max(1, self.count - 1)

    def scaled_by(self, other: Moments) -> Moments:
        """These rows with each feature divided by its deviation in `other`; constant ones stay."""
        deviation = np.sqrt(np.diag(other.covariance))
        scale = np.where(deviation > 1e-9, 1 / np.maximum(deviation, 1e-9), 1.0)
        return Moments(self.count, self.mean * scale, self.scatter * np.outer(scale, scale))


def frechet_distance(first: Moments, second: Moments) -> float:
    """Fréchet distance between the normal distributions of two sets.

    |m1 - m2|^2 + Tr(C1 + C2 - 2 (C1 C2)^(1/2)): Dowson and Landau 1982; Heusel et al. 2017. The
    root's trace is that of (C1^(1/2) C2 C1^(1/2))^(1/2), whose eigenvalues are real.
    """
    root = _root(first.covariance)
    middle = root @ second.covariance @ root
    eigenvalues = np.linalg.eigvalsh((middle + middle.T) / 2)
    shared = np.sqrt(np.maximum(eigenvalues, 0)).sum()
    means = np.square(first.mean - second.mean).sum()
    distance = means + np.trace(first.covariance) + np.trace(second.covariance) - 2 * shared
    return float(max(distance, 0.0))


def _root(covariance: Array) -> Array:
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def kinetic_features(motion: Motion) -> Array:
    """(66,) how much each of 22 joints moves: horizontal and vertical energy, and effort.

    Means over time of v_xz^2 and v_y^2 (m^2/s^2) and of the acceleration's length (m/s^2): Onuma,
    Faloutsos and Hodgins 2008, on which AIST++'s kinetic score rests. Square roots of the energies
    are taken, so that one fast clip does not outweigh the set.
    """
    body = _body(motion)
    if len(body) < 3:
        return np.zeros(3 * NUM_BODY_JOINTS)
    velocity = np.diff(body, axis=0) * motion.fps
    effort = np.linalg.norm(np.diff(velocity, axis=0) * motion.fps, axis=-1).mean(axis=0)
    across = np.sqrt(np.square(velocity[..., [0, 2]]).sum(axis=-1).mean(axis=0))
    upward = np.sqrt(np.square(velocity[..., 1]).mean(axis=0))
    return np.concatenate([across, upward, effort])


# Joint pairs whose distance tells a pose, after the relational features of Mueller, Roeder and
# Clausen 2005: hands, feet and head against each other and against the trunk.
_ENDS = ("Head", "L_Wrist", "R_Wrist", "L_Ankle", "R_Ankle")
_PAIRS = [
    *((a, b) for i, a in enumerate(_ENDS) for b in _ENDS[i + 1 :]),
    *((end, "Pelvis") for end in _ENDS),
    ("L_Hip", "L_Ankle"),
    ("R_Hip", "R_Ankle"),
    ("L_Shoulder", "L_Wrist"),
    ("R_Shoulder", "R_Wrist"),
]


def geometric_features(motion: Motion) -> Array:
    """(48,) which poses a clip holds: means and deviations over time of distances and heights.

    Of 19 distances between ends and trunk, and of the heights of the five ends above the pelvis;
    metres. AIST++'s geometric score counts yes-or-no relations of the same kind instead.
    """
    body = _body(motion)
    index = JOINT_NAMES.index
    first, second = ([index(names[k]) for names in _PAIRS] for k in (0, 1))
    distances = np.linalg.norm(body[:, first] - body[:, second], axis=-1)
    heights = body[:, [index(end) for end in _ENDS], 1] - body[:, PELVIS, 1][:, None]
    held = np.concatenate([distances, heights], axis=1)
    return np.concatenate([held.mean(axis=0), held.std(axis=0)])


FEATURES = {"kinetic": kinetic_features, "geometric": geometric_features}
"""Features that need no evaluator, by the name that their distance carries."""


def _body(motion: Motion) -> Array:
    body: Array = motion.joints[:, :NUM_BODY_JOINTS].cpu().double().numpy()
    return body
