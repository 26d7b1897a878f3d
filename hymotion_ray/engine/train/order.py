"""Which clip stands where in the endless stream of a run. Knows names and counts, reads no file.

The stream is one epoch after another without a gap, so a batch may begin in one epoch and end in
the next: nothing is dropped and no batch is short. Position p belongs to epoch p // N. Within an
epoch shards come in the order of a hash, and clips are shuffled in windows that reach over several
shards; the last window is what is left. All of it is a pure function of (seed, epoch, position):
the order of `formats.shards.iter_shards`, which reads one epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.errors import InputError
from hymotion_ray.formats.shard_order import epoch_order, window_order


class Place(NamedTuple):
    """Where a clip lies."""

    epoch: int
    shard: str
    row: int


class StreamOrder:
    """The stream of a split. `shards`: number of clips by shard name."""

    def __init__(self, shards: Mapping[str, int], *, seed: int, window: int) -> None:
        """Raises `InputError` for a split without clips."""
        self._shards = dict(shards)
        self.seed, self.window = seed, window
        self.num_clips = sum(self._shards.values())
        if self.num_clips == 0:
            raise InputError(
                "the dataset has no clips in this split; allowed: at least one; ingest clips, or"
                " name another with --set input.split=..."
            )
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)
        self._window = lru_cache(maxsize=4)(self._make_window)

    def place(self, position: int) -> Place:
        """The clip at a position, counted from 0 over all epochs."""
        epoch, index = divmod(position, self.num_clips)
        number, at = divmod(index, self.window)
        row = number * self.window + int(self._window(epoch, number)[at])
        names, starts = self._epoch(epoch)
        shard = int(np.searchsorted(starts, row, side="right")) - 1
        return Place(epoch, names[shard], row - int(starts[shard]))

    def _make_epoch(self, epoch: int) -> tuple[list[str], NDArray[np.int64]]:
        names = epoch_order((n for n, count in self._shards.items() if count), self.seed, epoch)
        counts = [self._shards[name] for name in names]
        return names, np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)

    def _make_window(self, epoch: int, number: int) -> NDArray[np.int64]:
        size = min(self.window, self.num_clips - number * self.window)
        return window_order(size, self.seed, epoch, number)


def row_shares(num_rows: int, shares: tuple[float, ...]) -> list[tuple[int, int]]:
    """The (first, end) rows of a global batch that each rank computes, in the order of ranks.

    shares: weight of each rank. Rows go by largest remainder, at least one a rank where there are
    enough; the same for the same arguments.
    """
    total = sum(shares)
    exact = [num_rows * share / total for share in shares]
    counts = [int(x) for x in exact]
    by_rest = sorted(range(len(shares)), key=lambda r: (counts[r] - exact[r], r))
    for rank in by_rest[: num_rows - sum(counts)]:
        counts[rank] += 1
    while 0 in counts and max(counts) > 1:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    ends = np.cumsum(counts).tolist()
    return [(end - count, end) for count, end in zip(counts, ends, strict=True)]
