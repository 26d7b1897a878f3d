"""Smoothing over time: weighted mean rotations and a Savitzky-Golay filter for the translation.

It knows clips of unlike length side by side, and that none may touch another: a clip's result is
the same to the bit alone and in any company. It knows no joints, bodies or floors.

Short clips. Rotations: the window of 9 repeats the edge frames, so every length from one frame on
is smoothed. Translation: the window is the largest odd one that fits, at most 11, and the
polynomial order 5; where that polynomial would pass through every point of the window (clips under
7 frames) there is nothing to smooth and the translation stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import roma
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Tensor

_SIGMA = 1.0
_RADIUS = 4
_WINDOW = 11
_ORDER = 5
_NUM_STEPS = 5
_SMALL_DETERMINANT = 1e-3
_SETTLED = 1e-5


def smooth_rotations(matrix: Tensor, lengths: Sequence[int]) -> Tensor:
    """Smoothed rotations (sum of L, J, 3, 3) of clips laid end to end, each joint on its own.

    lengths: frames of each clip; float64 in and out, so that a steep mean loses nothing. Every
    frame becomes the mean of its 9 neighbours, weighted by a Gaussian of one frame's width, as
    Markley et al. 2007 ("Averaging Quaternions") define it: the rotation that maximises the
    weighted sum of squared quaternion products. They show that it is also the rotation nearest to
    the weighted mean of the matrices, which is what is computed here. Opposite turns that cancel
    out leave no unique mean; one of the nearest is given.
    """
    mean = torch.empty_like(matrix)
    for clip, smoothed in zip(matrix.split(list(lengths)), mean.split(list(lengths)), strict=True):
        gaussian_filter1d(
            clip.numpy(), _SIGMA, axis=0, mode="nearest", radius=_RADIUS, output=smoothed.numpy()
        )
    return nearest_rotations(mean)


def smooth_translation(transl: Tensor, lengths: Sequence[int]) -> Tensor:
    """Smoothed translation (sum of L, 3) of clips laid end to end; float32.

    Savitzky-Golay (Savitzky and Golay 1964), window 11, order 5, polynomial ends; short clips as in
    the module's text. Exact weights and float64 sums in a fixed order: a fit of the ends in float32
    differs by up to 0.1 mm from one processor's linear algebra to another's.
    """
    clips = transl.double().split(list(lengths))
    return torch.cat([torch.from_numpy(_savgol(clip.numpy())) for clip in clips]).float()


def _savgol(transl: np.ndarray) -> np.ndarray:
    """One clip's translation (L, 3) smoothed by the largest window that fits; float64."""
    num_frames = transl.shape[0]
    window = min(_WINDOW, num_frames if num_frames % 2 else num_frames - 1)
    if window <= _ORDER + 1:
        return transl
    weights, half = _fit_weights(window), window // 2
    smoothed = np.zeros_like(transl)
    for tap in range(window):
        smoothed[half : num_frames - half] += (
            weights[half, tap] * transl[tap : num_frames - window + 1 + tap]
        )
        smoothed[:half] += weights[:half, tap, None] * transl[tap]
        smoothed[num_frames - half :] += (
            weights[half + 1 :, tap, None] * transl[num_frames - window + tap]
        )
    return smoothed


@cache
def _fit_weights(window: int) -> np.ndarray:
    """Weights (window, window) of a least-squares polynomial: its value at i from all values.

    By Gram-Schmidt over the monomials in exact fractions, then rounded to float64.
    """
    basis: list[list[Fraction]] = []
    for degree in range(_ORDER + 1):
        vector = [Fraction(x - window // 2) ** degree for x in range(window)]
        for other in basis:
            share = _dot(vector, other) / _dot(other, other)
            vector = [v - share * o for v, o in zip(vector, other, strict=True)]
        basis.append(vector)
    return np.array(
        [
            [
                float(sum((b[i] * b[j] / _dot(b, b) for b in basis), Fraction(0)))
                for j in range(window)
            ]
            for i in range(window)
        ]
    )


def _dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def nearest_rotations(matrix: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) nearest to the given ones (..., 3, 3) in the Frobenius norm.

    By Newton's iteration for the polar factor with determinant scaling (Higham 1986), all matrices
    together; where a determinant is not well above zero, or the iteration has not settled, by
    roma's singular value decomposition. The number of steps is fixed, so that no matrix's result
    depends on its neighbours.
    """
    entries = matrix.reshape(-1, 3, 3).permute(1, 2, 0).contiguous()
    settled = torch.ones(entries.shape[-1], dtype=torch.bool)
    previous = entries
    for step in range(_NUM_STEPS):
        cofactors = _cofactors(entries)
        determinant = (entries[0] * cofactors[0]).sum(dim=0)
        if step == 0:
            settled = determinant > _SMALL_DETERMINANT
        scale = determinant.abs().clamp(min=_SMALL_DETERMINANT) ** (-1 / 3)
        previous = entries
        entries = 0.5 * (scale * entries + cofactors / (scale * determinant))
    settled &= (entries - previous).abs().amax(dim=(0, 1)) < _SETTLED
    nearest = entries.permute(2, 0, 1).contiguous()
    if not bool(settled.all()):
        nearest[~settled] = roma.special_procrustes(matrix.reshape(-1, 3, 3)[~settled])
    return nearest.reshape(matrix.shape)


def _cofactors(entries: Tensor) -> Tensor:
    """Cofactor matrices (3, 3, N) of matrices (3, 3, N): determinant times inverse transpose."""
    first, second, third = entries
    return torch.stack(
        [_cross(second, third), _cross(third, first), _cross(first, second)],
    )


def _cross(a: Tensor, b: Tensor) -> Tensor:
    """Cross products (3, N) of vectors (3, N), three times as fast as torch's own here."""
    return torch.stack(
        [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    )
