"""What there is to evaluate at a path, as pieces of work and as clips. Ray-free.

Knows three things that hold motions: a folder (or one file) of motions, the output folder of a
render, and a dataset of shards. Does not know models (`model.py` renders those first) and no
measures.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import PurePosixPath
from typing import Any, Literal

import pyarrow.parquet as pq
import torch

from hymotion_ray.engine.manifest import FOLDER as MANIFEST_FOLDER
from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.errors import HyMotionError, InputError
from hymotion_ray.formats.atomic import Store, open_store
from hymotion_ray.formats.motions import FORMATS, decode_motion
from hymotion_ray.formats.shards import (
    MANIFEST_FILE,
    SPLITS,
    Dataset,
    ShardInfo,
    open_dataset,
    read_shard,
)
from hymotion_ray.motion.motion import Motion

Kind = Literal["files", "rendered", "dataset"]
FILES_A_PIECE = 64
_READABLE = [name for name, entry in FORMATS.items() if entry.read is not None]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A place with motions."""

    kind: Kind
    store: Store
    split: str = "all"
    """Of a dataset."""
    only: str | None = None
    """The one file of `store` that is asked for."""

    @property
    def url(self) -> str:
        """The place as users know it."""
        return self.store.url(self.only or "")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Clips that one process measures at a stretch."""

    kind: Kind
    root: str
    names: tuple[str, ...]
    """Files below the root: motions, rows of render shards as `file#row`, or shards."""
    num_clips: int
    """Clips in them."""

    def split(self) -> list[Piece]:
        """One piece a name."""
        each = self.num_clips if len(self.names) == 1 else 1
        return [
            Piece(kind=self.kind, root=self.root, names=(name,), num_clips=each)
            for name in self.names
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """One motion with its name and what is said of it."""

    name: str
    motion: Motion
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reject:
    """A file or clip that could not be measured, and why."""

    name: str
    code: str
    message: str


def find_source(path: str, split: str = "all") -> Source:
    """What lies at a path or URL; `InputError` when there is nothing."""
    if "://" not in path:
        path = os.path.abspath(os.path.expanduser(path))
        if os.path.isfile(path):
            folder, name = os.path.split(path)
            return Source(kind="files", store=open_store(folder), only=name)
        if not os.path.isdir(path):
            raise InputError(
                f"{path}: no such file or folder; give a folder of motions ("
                f"{', '.join(_READABLE)}), a render's output, a dataset, or a model"
            )
    elif PurePosixPath(path).suffix[1:].lower() in _READABLE:
        folder, _, name = path.rpartition("/")
        return Source(kind="files", store=open_store(folder), only=name)
    store = open_store(path)
    if store.exists(MANIFEST_FILE):
        return Source(kind="dataset", store=store, split=split)
    if store.list_files(MANIFEST_FOLDER, suffix=".parquet", limit=1):
        return Source(kind="rendered", store=store)
    return Source(kind="files", store=store)


def iter_pieces(source: Source, limit: int | None = None) -> Iterator[Piece]:
    """The clips of a source in pieces, in the order of their names; at most `limit` clips.

    A dataset is cut at shards. `InputError` for a damaged dataset.
    """
    if source.kind == "dataset":
        yield from _shard_pieces(source, limit)
        return
    names = _rendered(source.store) if source.kind == "rendered" else iter(_motion_files(source))
    names = islice(names, limit)
    while group := tuple(islice(names, FILES_A_PIECE)):
        yield Piece(kind=source.kind, root=source.store.root, names=group, num_clips=len(group))


def read_piece(piece: Piece) -> Iterator[Clip | Reject]:
    """The clips of a piece one at a time; whatever is wrong with one becomes a `Reject`."""
    store = Store(piece.root)
    if piece.kind == "dataset":
        yield from _shard_clips(store, piece.names)
        return
    for file, rows in groupby(piece.names, key=lambda name: name.partition("#")[0]):
        yield from _file_clips(store, file, list(rows))


def _motion_files(source: Source) -> list[str]:
    """Files of motions, each clip once: of one stem the first of npz, bvh, glb counts."""
    if source.only is not None:
        return [source.only]
    chosen: dict[str, str] = {}
    rank = {name: place for place, name in enumerate(_READABLE)}
    for name in source.store.list_files():
        path = PurePosixPath(name)
        suffix = path.suffix[1:].lower()
        if suffix not in rank or any(part.startswith(".") for part in path.parts):
            continue
        stem = name[: -len(path.suffix)]
        held = chosen.get(stem)
        if held is None or rank[suffix] < rank[PurePosixPath(held).suffix[1:].lower()]:
            chosen[stem] = name
    return sorted(chosen.values())


def _rendered(store: Store) -> Iterator[str]:
    """Files of a render's finished clips."""
    for batch in read_batches(store, columns=["status", "file"]):
        for status, file in zip(*(batch[n].to_pylist() for n in ("status", "file")), strict=True):
            if status == "done":
                yield file


def _shard_pieces(source: Source, limit: int | None) -> Iterator[Piece]:
    left = limit
    for shard in dataset_shards(open_dataset(source.store.root), source.split):
        if left is not None and left <= 0:
            return
        num = shard.num_clips if left is None else min(left, shard.num_clips)
        name = shard.name if num == shard.num_clips else f"{shard.name}#{num}"
        yield Piece(kind="dataset", root=source.store.root, names=(name,), num_clips=num)
        left = None if left is None else left - num


def dataset_shards(dataset: Dataset, split: str) -> list[ShardInfo]:
    """The shards of one split, or of all."""
    splits = SPLITS if split == "all" else (split,)
    return [shard for name in splits for shard in dataset.shards(name)]


def _shard_clips(store: Store, names: Sequence[str]) -> Iterator[Clip | Reject]:
    """Clips of shards; `name#n` means the first n."""
    dataset = open_dataset(store.root)
    known = {shard.name: shard for shard in dataset_shards(dataset, "all")}
    for wanted in names:
        name, _, limit = wanted.partition("#")
        try:
            for held in islice(read_shard(dataset, known[name]), int(limit) if limit else None):
                motion = Motion.from_rotations(
                    torch.from_numpy(held.rot6d),
                    torch.from_numpy(held.transl),
                    dataset.skeleton,
                    30.0,
                )
                texts = tuple(c.text for c in held.captions if not c.mirrored)
                yield from _checked(Clip(name=held.clip_id, motion=motion, texts=texts))
        except HyMotionError as error:
            yield Reject(name=store.url(name), code="damaged", message=str(error))


def _file_clips(store: Store, file: str, rows: Sequence[str]) -> Iterator[Clip | Reject]:
    """The clips of one file: a motion file, or rows of a render's shard."""
    try:
        content = store.read_bytes(file)
        if "#" in rows[0]:
            table = pq.read_table(io.BytesIO(content), columns=["npz"])["npz"]
            packed = {row: table[int(row.partition("#")[2])].as_py() for row in rows}
        else:
            packed = {file: content}
    except (HyMotionError, OSError, ValueError, IndexError) as error:
        yield from (Reject(name=row, code="unreadable", message=str(error)) for row in rows)
        return
    for row, data in packed.items():
        suffix = "npz" if "#" in row else PurePosixPath(row).suffix[1:].lower()
        try:
            motion = decode_motion(data, suffix, store.url(row))
        except HyMotionError as error:
            advice = "" if suffix == "npz" else "; `hymotion-ray ingest` reads other tools' files"
            yield Reject(name=row, code="damaged", message=f"{error}{advice}")
            continue
        prompt = motion.meta.get("prompt")
        texts = (prompt,) if isinstance(prompt, str) and prompt else ()
        yield from _checked(Clip(name=row, motion=motion, texts=texts))


def _checked(clip: Clip) -> Iterator[Clip | Reject]:
    if clip.motion.joints.isfinite().all():
        yield clip
    else:
        yield Reject(name=clip.name, code="not_finite", message="holds NaN or infinite numbers")


def source_mapping(source: Source) -> dict[str, Any]:
    """What a report says of a source."""
    return {"path": source.url, "kind": source.kind} | (
        {"split": source.split} if source.kind == "dataset" else {}
    )
