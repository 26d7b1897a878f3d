"""Reads single clips of shards, in any order, at bounded memory. Ray-free.

Knows shards, row groups and a cache of what was unpacked. Knows no order and no features. Each
shard is read whole and checked against the manifest when it is opened.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hymotion_ray.errors import InputError
from hymotion_ray.formats.shard_table import ShardClip, from_table
from hymotion_ray.formats.shards import Dataset, ShardInfo, open_verified

K = TypeVar("K")
V = TypeVar("V")

_FRAME_BYTES = 4 * (3 + 22 * 6)


class ClipReader:
    """The clips of a split by shard and row."""

    def __init__(self, dataset: Dataset, split: str, cache_bytes: int) -> None:
        """cache_bytes: unpacked row groups that stay, and half as much for packed shards; the
        newest of each always stays.
        """
        self._dataset = dataset
        self._shards: dict[str, ShardInfo] = {s.name: s for s in dataset.shards(split)}
        self._groups = Cache[tuple[str, int], list[ShardClip]](cache_bytes)
        self._files = Cache[str, pq.ParquetFile](cache_bytes // 2)
        self._starts: dict[str, NDArray[np.int64]] = {}

    def clip(self, shard: str, row: int) -> ShardClip:
        """One clip; `InputError` names a shard that is missing, torn or changed."""
        if shard not in self._starts:
            self._file(shard)
        starts = self._starts[shard]
        group = int(np.searchsorted(starts, row, side="right")) - 1
        return self._group(shard, group)[row - int(starts[group])]

    def _group(self, shard: str, group: int) -> list[ShardClip]:
        clips = self._groups.get((shard, group))
        if clips is None:
            clips = list(from_table(self._file(shard).read_row_group(group)))
            num_bytes = sum(clip.num_frames for clip in clips) * _FRAME_BYTES
            self._groups.put((shard, group), clips, num_bytes)
        return clips

    def _file(self, shard: str) -> pq.ParquetFile:
        """The shard, opened; its row groups are noted for good."""
        file = self._files.get(shard)
        if file is None:
            info = self._shards[shard]
            file = open_verified(self._dataset, info)
            sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            if sum(sizes) != info.num_clips:
                raise InputError(
                    f"{self._dataset.store.url(shard)} holds {sum(sizes)} clips, and its manifest"
                    f" says {info.num_clips}; ingest again into a new folder"
                )
            self._starts[shard] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            self._files.put(shard, file, info.num_bytes)
        return file


class Cache(Generic[K, V]):
    """Least lately used values go first once they are too many bytes; the newest stays."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._total = 0

    def get(self, key: K) -> V | None:
        """The value of a key, or None where it is not held."""
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """Hold a value of so many bytes."""
        self._held[key] = value, num_bytes
        self._total += num_bytes
        while self._total > self._max_bytes and len(self._held) > 1:
            _, (_, freed) = self._held.popitem(last=False)
            self._total -= freed


def unpacked_bytes(dataset: Dataset, split: str) -> int:
    """Memory that the motion of a split takes when unpacked."""
    return sum(shard.num_frames for shard in dataset.shards(split)) * _FRAME_BYTES
