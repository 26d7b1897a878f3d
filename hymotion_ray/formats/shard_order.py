"""The order of an epoch over shards: a pure function of seed, epoch and names. Knows no files.

Made of SHA-256 and integer arithmetic alone, so that no release of a library changes the order of a
run that is resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def epoch_order(names: Iterable[str], seed: int, epoch: int) -> list[str]:
    """Shards in the order of an epoch: by a hash of seed, epoch and name, so that shards added
    later leave the others' order as it was.
    """
    return sorted(
        names, key=lambda name: hashlib.sha256(f"{seed}/{epoch}/{name}".encode()).digest()
    )


def window_order(num_clips: int, seed: int, epoch: int, number: int) -> NDArray[np.int64]:
    """The order of the clips of window `number`: a permutation of 0 to num_clips - 1."""
    start = hashlib.sha256(f"{seed}/{epoch}/{number}".encode()).digest()
    keys = np.arange(num_clips, dtype=np.uint64) + np.frombuffer(start[:8], "<u8")
    return np.argsort(_mixed(keys), kind="stable")


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function (Steele, Lea and Flood 2014), a bijection of 64-bit numbers."""
    with np.errstate(over="ignore"):
        z = keys * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
