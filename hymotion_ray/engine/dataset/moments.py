"""Mean and deviation of features over any number of clips, exact whatever the order they came in.

Running sums in float64: count, mean and summed squared distances from the mean, merged pairwise
(Chan, Golub and LeVeque 1979, after Welford 1962). Ray-free; knows no files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SMALL_STD = 1e-3
"""Features with a smaller deviation are constants: training divides by 1 there and decoding
multiplies by 0 (docs/network.md; the pelvis's own position is one)."""


@dataclass(frozen=True)
class Moments:
    """`count` frames with `mean` (D,) and `squares` (D,), the summed squared distances from it."""

    count: int
    mean: Array
    squares: Array

    @classmethod
    def of(cls, features: NDArray[np.floating]) -> Moments:
        """Of the frames of one clip (L, D)."""
        frames = np.asarray(features, dtype=np.float64)
        mean = frames.mean(axis=0)
        return cls(len(frames), mean, np.square(frames - mean).sum(axis=0))

    @classmethod
    def none(cls, width: int) -> Moments:
        """Of no frames."""
        return cls(0, np.zeros(width), np.zeros(width))

    def merged(self, other: Moments) -> Moments:
        """Of both sets of frames."""
        count = self.count + other.count
        if not self.count or not other.count:
            return other if other.count else self
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.count / count)
        squares = self.squares + other.squares + gap**2 * (self.count * other.count / count)
        return Moments(count, mean, squares)

    @property
    def std(self) -> Array:
        """Deviation (D,) over all frames; zeros for none."""
        return np.sqrt(self.squares / max(1, self.count))

    def to_bytes(self) -> bytes:
        """Count, mean and squares as little-endian float64, one after another."""
        return np.concatenate([[self.count], self.mean, self.squares]).astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Moments:
        """What `to_bytes` made."""
        values = np.frombuffer(data, "<f8")
        width = (len(values) - 1) // 2
        return cls(int(values[0]), values[1 : 1 + width], values[1 + width :])
