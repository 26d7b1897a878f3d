"""A dataset of shards, read for training: its manifest, its order, its clips. Ray-free.

It knows the folder that `hymotion-ray ingest` leaves, and reads it as a stream. The order of an
epoch is a pure function of (seed, epoch) and the shards' names: shards in the order of a hash,
clips shuffled within windows that reach over several shards. Every shard is opened once an epoch
(k = 1), unless a dataset has fewer shards than parts. It knows no batches and no features.

Memory: a window of clips, one shard's packed bytes, one row group.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.atomic import Store, open_store
from hymotion_ray.formats.shard_order import epoch_order, window_order
from hymotion_ray.formats.shard_table import ShardClip, from_table, open_shard
from hymotion_ray.motion.features import canonicalise
from hymotion_ray.motion.skeleton import NUM_JOINTS, PELVIS, Skeleton

DATASET_SCHEMA_VERSION = 1
MANIFEST_FILE, STATS_FILE, FOLDER = "manifest.json", "stats.json", "shards"
SPLITS = ("train", "val", "test")
WINDOW = 1024
"""Clips that are shuffled together: about 170 MB at 10 s a clip."""


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One shard as the manifest has it."""

    name: str
    """Path below the dataset's folder."""
    split: str
    """One of `SPLITS`."""
    num_clips: int
    num_frames: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class FeatureStats:
    """Mean and deviation (201,) float64 of the features of the train split."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    num_frames: int
    digest: str
    """Names the two arrays; checkpoints carry it."""


@dataclass(frozen=True)
class Dataset:
    """A folder of shards; `manifest` is its manifest.json."""

    store: Store
    manifest: dict[str, Any]

    @property
    def skeleton(self) -> Skeleton:
        """The body that translations and scales refer to."""
        rest = np.array(self.manifest["skeleton"], dtype=np.float32).reshape(NUM_JOINTS, 3)
        return Skeleton(rest)

    def shards(self, split: str) -> list[ShardInfo]:
        """The shards of a split, by name; `InputError` for an unknown split."""
        if split not in SPLITS:
            raise InputError(f"split is {split!r}; allowed: {', '.join(SPLITS)}")
        found = [ShardInfo(**row) for row in self.manifest["shards"] if row["split"] == split]
        return sorted(found, key=lambda shard: shard.name)

    def num_clips(self, split: str) -> int:
        """Clips of a split."""
        return sum(shard.num_clips for shard in self.shards(split))

    def stats(self) -> FeatureStats:
        """The statistics that belong to these shards; `InputError` when the file is another's."""
        content = _read(self.store, STATS_FILE)
        if hashlib.sha256(content).hexdigest() != self.manifest["stats_sha256"]:
            raise InputError(
                f"{self.store.url(STATS_FILE)} does not belong to {MANIFEST_FILE} beside it: an"
                " ingest was stopped between the two, or one was changed; run the same ingest again"
            )
        saved = json.loads(content)
        return FeatureStats(
            mean=np.array(saved["mean"], dtype=np.float64),
            std=np.array(saved["std"], dtype=np.float64),
            num_frames=saved["num_frames"],
            digest=saved["digest"],
        )


def open_dataset(path: str | os.PathLike[str]) -> Dataset:
    """The dataset in a folder or URL; `InputError` when there is none, or one of another form."""
    store = open_store(path)
    if not store.exists(MANIFEST_FILE):
        raise InputError(
            f"{store.url()} holds no {MANIFEST_FILE}: no dataset, or its ingest did not finish its"
            " first round; run `hymotion-ray ingest SRC --out` with this folder"
        )
    try:
        manifest = json.loads(_read(store, MANIFEST_FILE))
        version = manifest["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{store.url(MANIFEST_FILE)} is no manifest ({error!r})") from error
    if version != DATASET_SCHEMA_VERSION:
        raise InputError(
            f"{store.url(MANIFEST_FILE)} has schema version {version}; allowed:"
            f" {DATASET_SCHEMA_VERSION}; use the release that wrote it, or ingest again"
        )
    return Dataset(store, manifest)


def read_shard(dataset: Dataset, shard: ShardInfo) -> Iterator[ShardClip]:
    """The clips of one shard in the order they lie there, one row group in memory.

    `InputError` names a shard that is missing, torn, changed or no shard at all.
    """
    file = open_verified(dataset, shard)
    for group in range(file.num_row_groups):
        yield from from_table(file.read_row_group(group))


def iter_shards(
    dataset: Dataset | str | os.PathLike[str],
    split: str = "train",
    *,
    seed: int = 0,
    epoch: int = 0,
    window: int = WINDOW,
    part: int = 0,
    num_parts: int = 1,
    skip: int = 0,
) -> Iterator[ShardClip]:
    """One epoch of a split, shuffled; the same clips in the same order for the same arguments.

    part, num_parts: this reader's share, for several side by side. Shards are dealt in the epoch's
    order; where there are fewer shards than parts, each part reads all and keeps every num_parts-th
    clip. skip: clips of this part already seen in this epoch; shards that only they lie in are not
    opened. `InputError` for a damaged shard.
    """
    if not isinstance(dataset, Dataset):
        dataset = open_dataset(dataset)
    if window < 1 or not 0 <= part < num_parts or skip < 0:
        raise InputError(
            f"window {window}, part {part} of {num_parts}, skip {skip}; allowed: window 1 or more,"
            " part 0 to num_parts - 1, skip 0 or more"
        )
    by_name = {shard.name: shard for shard in dataset.shards(split)}
    shards = [by_name[name] for name in epoch_order(by_name, seed, epoch)]
    by_rows = len(shards) < num_parts
    mine = shards if by_rows else shards[part::num_parts]
    stride, offset = (num_parts, part) if by_rows else (1, 0)
    # Positions in the stream before shuffling; windows that lie wholly before `skip` need no data.
    seen = skip * stride + offset
    first = seen // window * window
    pending: list[ShardClip] = []
    number = first // window
    for clip in _rows_from(dataset, mine, first):
        pending.append(clip)
        if len(pending) == window:
            yield from _shuffled(pending, seed, epoch, number, seen, stride, offset, window)
            pending, number = [], number + 1
    yield from _shuffled(pending, seed, epoch, number, seen, stride, offset, window)


def on_skeleton(
    clip: ShardClip, made_for: Skeleton, target: Skeleton
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """rot6d (L, 22, 6) and transl (L, 3) of a clip on another body, in the canonical frame.

    made_for: the dataset's skeleton. Rotations carry over; the pelvis moves by the ratio of leg
    lengths, and the floor is found anew under the target's soles. The same body gives the clip.
    """
    if made_for.same_as(target):
        return clip.rot6d, clip.transl
    ratio = target.leg_length / made_for.leg_length
    moved = (clip.transl + made_for.rest[PELVIS]) * ratio - target.rest[PELVIS]
    transl = torch.from_numpy(moved).double()
    rot6d, transl = canonicalise(torch.from_numpy(clip.rot6d).double(), transl, target)
    return rot6d.float().numpy(), transl.float().numpy()


def check_dataset(path: str | os.PathLike[str]) -> list[str]:
    """What is wrong with a dataset: missing, torn and foreign files, each named; none when whole.

    Reads every shard once.
    """
    dataset = open_dataset(path)
    problems: list[str] = []
    known = set()
    for split in SPLITS:
        for shard in dataset.shards(split):
            known.add(shard.name)
            try:
                file = open_verified(dataset, shard)
                if file.metadata.num_rows != shard.num_clips:
                    problems.append(f"{shard.name}: {file.metadata.num_rows} clips, not as listed")
            except InputError as error:
                problems.append(str(error))
    for name in dataset.store.list_files(FOLDER):
        if name not in known:
            problems.append(
                f"{dataset.store.url(name)} is not in {MANIFEST_FILE}: foreign, or left by an"
                " ingest that was stopped; nothing reads it"
            )
    try:
        dataset.stats()
    except InputError as error:
        problems.append(str(error))
    return problems


def stats_digest(mean: NDArray[np.float64], std: NDArray[np.float64]) -> str:
    """A name of statistics: SHA-256 of mean and std as little-endian float64, 16 digits."""
    content = np.stack([mean, std]).astype("<f8").tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def shard_mapping(shard: ShardInfo) -> dict[str, Any]:
    """A shard as its row in the manifest."""
    return asdict(shard)


def _rows_from(dataset: Dataset, shards: Sequence[ShardInfo], first: int) -> Iterator[ShardClip]:
    """Clips of `shards` one after another, without the first `first`."""
    for shard in shards:
        if first >= shard.num_clips:
            first -= shard.num_clips
            continue
        for clip in read_shard(dataset, shard):
            if first:
                first -= 1
            else:
                yield clip


def _shuffled(
    clips: list[ShardClip],
    seed: int,
    epoch: int,
    number: int,
    seen: int,
    stride: int,
    offset: int,
    window: int,
) -> Iterator[ShardClip]:
    """The clips of one window that are this part's and not seen yet, in the epoch's order."""
    for place, index in enumerate(window_order(len(clips), seed, epoch, number)):
        position = number * window + place
        if position >= seen and (position - offset) % stride == 0:
            yield clips[index]


def open_verified(dataset: Dataset, shard: ShardInfo) -> pq.ParquetFile:
    """A shard as an open Parquet file; `InputError` when it is missing, torn or changed."""
    content = _read(dataset.store, shard.name)
    url = dataset.store.url(shard.name)
    if len(content) != shard.num_bytes or hashlib.sha256(content).hexdigest() != shard.sha256:
        raise InputError(
            f"{url} is torn or was changed: {len(content)} bytes, {shard.num_bytes} and another"
            " checksum in the manifest; restore it from a copy, or ingest into a new folder"
        )
    return open_shard(content, url)


def _read(store: Store, name: str) -> bytes:
    try:
        return store.read_bytes(name)
    except OutputError as error:
        raise InputError(str(error)) from error
