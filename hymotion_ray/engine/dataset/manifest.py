"""The manifest of a dataset and the tables beside it: read, and extended round by round. Ray-free.

A round is committed by writing manifest.json: what it does not name is not part of the dataset.

    manifest.json        schema version, skeleton, shards with checksums, counts, rounds
    stats.json           mean and deviation of the features, from the manifest's moments
    clips/round-*.parquet     one row a clip: shard, split, group, numbers
    rejects/round-*.parquet   one row a reject: reason, words, number and limit
    files/round-*.parquet     one row a source file: what became of it
    samples/round-*.parquet   a few rejected motions, for the report's pictures
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.ingest import FPS, SplitConfig
from hymotion_ray.engine.dataset.catalogue import Catalogue
from hymotion_ray.engine.dataset.moments import SMALL_STD, Moments
from hymotion_ray.engine.dataset.part import CLIP_COLUMNS, REJECT_COLUMNS
from hymotion_ray.engine.dataset.shard import WrittenShard
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store
from hymotion_ray.formats.shards import (
    DATASET_SCHEMA_VERSION,
    MANIFEST_FILE,
    SPLITS,
    STATS_FILE,
    shard_mapping,
    stats_digest,
)
from hymotion_ray.motion.features import NUM_FEATURES
from hymotion_ray.motion.skeleton import Skeleton

Manifest = dict[str, Any]
_BATCH = 4096

CLIPS = pa.schema([*CLIP_COLUMNS, ("split", pa.string()), ("shard", pa.string())])
REJECTS = pa.schema(REJECT_COLUMNS)
FILES = pa.schema(
    [
        ("key", pa.string()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("accepted", pa.int32()),
        ("rejected", pa.int32()),
    ]
)


def read_manifest(store: Store) -> Manifest | None:
    """The manifest of an output folder, None before its first round."""
    if not store.exists(MANIFEST_FILE):
        return None
    manifest: Manifest = json.loads(store.read_bytes(MANIFEST_FILE))
    if manifest.get("schema_version") != DATASET_SCHEMA_VERSION:
        raise OutputError(
            f"{store.url(MANIFEST_FILE)} has schema version {manifest.get('schema_version')};"
            f" allowed: {DATASET_SCHEMA_VERSION}; use another --out, or the release that wrote it"
        )
    return manifest


def new_manifest(skeleton: Skeleton, splits: SplitConfig) -> Manifest:
    """The manifest of a dataset without clips."""
    return {
        "schema_version": DATASET_SCHEMA_VERSION,
        "kind": "hymotion-ray dataset",
        "fps": FPS,
        "splits": to_mapping(splits),
        "counts": {
            "files": 0,
            "clips": 0,
            "frames": 0,
            "captions": 0,
            "rejected": 0,
            "skipped": 0,
            "rejected_by_reason": {},
            "by_split": {split: {"clips": 0, "frames": 0} for split in SPLITS},
            "by_licence": {},
        },
        "rounds": [],
        "shards": [],
        "moments": _moments_mapping(Moments.none(NUM_FEATURES), Moments.none(NUM_FEATURES)),
        "stats_sha256": "",
        "skeleton": [[float(x) for x in joint] for joint in skeleton.rest],
    }


def table_batches(
    store: Store, manifest: Manifest, table: str, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of the tables `clips`, `rejects`, `files` or `samples` of all rounds, in batches."""
    for entry in manifest["rounds"]:
        name = entry["tables"].get(table)
        if name is None:
            continue
        content = store.read_bytes(name["name"])
        if hashlib.sha256(content).hexdigest() != name["sha256"]:
            raise OutputError(
                f"{store.url(name['name'])} is torn or was changed; restore it, or ingest into a"
                " new folder"
            )
        yield from pq.ParquetFile(io.BytesIO(content)).iter_batches(_BATCH, columns=columns)


def commit_round(
    store: Store,
    manifest: Manifest,
    catalogue: Catalogue,
    files: Iterable[tuple[str, str, int]],
    written: Sequence[WrittenShard],
    samples: pa.Table | None,
) -> Manifest:
    """Write a round's tables, then the manifest that names them; the new manifest.

    files: (key, path, size) of the source files of the round.
    """
    manifest = json.loads(json.dumps(manifest))
    number, counts = len(manifest["rounds"]), manifest["counts"]
    tables: dict[str, dict[str, str]] = {}

    def write(table: str, schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> None:
        name = f"{table}/round-{number:04d}.parquet"
        content = _parquet(schema, rows)
        store.write_bytes(name, content)
        tables[table] = {"name": name, "sha256": hashlib.sha256(content).hexdigest()}

    write("clips", CLIPS, _counting_clips(catalogue.new_clips(), counts))
    write("rejects", REJECTS, _counting_rejects(catalogue.new_rejects(), counts))
    write("files", FILES, _file_rows(files, catalogue, counts))
    if samples is not None:
        write("samples", samples.schema, samples.to_pylist())
    ordered = sorted(written, key=lambda shard: shard.info.name)
    manifest["shards"] += [shard_mapping(shard.info) for shard in ordered]
    train, other = (_moments(manifest["moments"][name]) for name in ("train", "other"))
    for shard in ordered:
        if shard.info.split == "train":
            train = train.merged(shard.moments)
        else:
            other = other.merged(shard.moments)
    manifest["moments"] = _moments_mapping(train, other)
    manifest["rounds"].append({"number": number, "tables": tables, "shards": len(ordered)})
    stats = stats_bytes(manifest)
    manifest["stats_sha256"] = hashlib.sha256(stats).hexdigest()
    store.write_bytes(STATS_FILE, stats)
    store.write_bytes(MANIFEST_FILE, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
    return manifest


def stats_bytes(manifest: Manifest) -> bytes:
    """stats.json of a manifest: statistics of the train split, of all clips where that is empty."""
    train, other = (_moments(manifest["moments"][name]) for name in ("train", "other"))
    moments = train if train.count else other
    std = moments.std
    stats = {
        "schema_version": 1,
        "features": "transl 0:3, rot6d 3:135, joints minus pelvis 135:201; 30 fps, not normalised",
        "split": "train" if train.count else "all",
        "num_frames": moments.count,
        "small_std": SMALL_STD,
        "constant": [int(i) for i in np.flatnonzero(std < SMALL_STD)],
        "rule": "features with std < small_std are constants: divide by 1 in training, multiply by"
        " 0 in decoding",
        "digest": stats_digest(moments.mean, std),
        "mean": moments.mean.tolist(),
        "std": std.tolist(),
    }
    return json.dumps(stats, indent=1).encode()


def _counting_clips(rows: Iterable[dict[str, Any]], counts: dict[str, Any]) -> Iterator[Any]:
    for row in rows:
        licence = counts["by_licence"].setdefault(row["licence"], {"clips": 0, "frames": 0})
        for place in (counts, counts["by_split"][row["split"]], licence):
            place["clips"] += 1
            place["frames"] += row["num_frames"]
        counts["captions"] += row["num_captions"]
        yield row


def _counting_rejects(rows: Iterable[dict[str, Any]], counts: dict[str, Any]) -> Iterator[Any]:
    reasons = Counter(counts["rejected_by_reason"])
    for row in rows:
        if row["is_motion"]:
            counts["rejected"] += 1
            reasons[row["code"]] += 1
        else:
            counts["skipped"] += 1
        yield row
    counts["rejected_by_reason"] = dict(sorted(reasons.items()))


def _file_rows(
    files: Iterable[tuple[str, str, int]], catalogue: Catalogue, counts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for key, path, size in files:
        counts["files"] += 1
        yield {
            "key": key,
            "path": path,
            "size": size,
            "accepted": catalogue.num_accepted(key),
            "rejected": sum(is_motion for _, is_motion in catalogue.reasons(key)),
        }


def _parquet(schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> bytes:
    """The bytes of a table, a batch of rows at a time."""
    sink = io.BytesIO()
    rest = iter(rows)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        while batch := list(islice(rest, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
    return sink.getvalue()


def _moments_mapping(train: Moments, other: Moments) -> dict[str, Any]:
    return {
        name: {
            "count": moments.count,
            "mean": moments.mean.tolist(),
            "squares": moments.squares.tolist(),
        }
        for name, moments in (("train", train), ("other", other))
    }


def _moments(saved: dict[str, Any]) -> Moments:
    return Moments(saved["count"], np.array(saved["mean"]), np.array(saved["squares"]))
