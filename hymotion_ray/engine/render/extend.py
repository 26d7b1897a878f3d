"""More formats for finished clips, written from their npz; nothing computed again. Ray-free."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hymotion_ray.config.render import Axis
from hymotion_ray.engine import faults
from hymotion_ray.engine.manifest import part_names, read_rows, rewrite_part
from hymotion_ray.engine.worklist import Worklist, target_key
from hymotion_ray.formats.atomic import Store
from hymotion_ray.formats.motions import decode_motion, encode_motion


def export_missing(store: Store, worklist: Worklist, axis: Axis) -> int:
    """Write what `worklist` says is missing, part by part of the manifest; the number of clips."""
    if not worklist.num_exports:
        return 0
    num_clips = 0
    for name in part_names(store):
        rows = read_rows(store, name)
        wanted = [(r, worklist.missing_formats(target_key(r["group"], r["stem"]))) for r in rows]
        wanted = [(r, formats) for r, formats in wanted if formats and r["status"] == "done"]
        if not wanted:
            continue
        _write_shards(store, [(r, f) for r, f in wanted if "#" in r["file"]], axis)
        _write_files(store, [(r, f) for r, f in wanted if "#" not in r["file"]], axis)
        faults.reach("extended", name)
        for row, formats in wanted:
            row["formats"] = ",".join([row["formats"], *formats])
        rewrite_part(store, name, rows)
        num_clips += len(wanted)
    return num_clips


def clip_bytes(store: Store, file: str) -> bytes:
    """The npz of a clip whose manifest row says `file`: a path, or a shard and a row number."""
    shard, sep, index = file.partition("#")
    if not sep:
        return store.read_bytes(file)
    table = pq.read_table(io.BytesIO(store.read_bytes(shard)), columns=["npz"])
    return bytes(table["npz"][int(index)].as_py())


def _write_files(store: Store, wanted: list[tuple[dict[str, Any], list[str]]], axis: Axis) -> None:
    for row, formats in wanted:
        motion = decode_motion(store.read_bytes(row["file"]), "npz")
        stem = row["file"].rpartition(".")[0]
        for name in formats:
            store.write_bytes(f"{stem}.{name}", encode_motion(motion, name, axis=axis))


def _write_shards(store: Store, wanted: list[tuple[dict[str, Any], list[str]]], axis: Axis) -> None:
    by_shard: dict[str, list[tuple[int, list[str]]]] = {}
    for row, formats in wanted:
        shard, _, index = row["file"].partition("#")
        by_shard.setdefault(shard, []).append((int(index), formats))
    for shard, entries in by_shard.items():
        table = pq.read_table(io.BytesIO(store.read_bytes(shard)))
        columns = {n: table[n].to_pylist() for n in table.column_names}
        for index, formats in entries:
            motion = decode_motion(columns["npz"][index], "npz")
            for name in formats:
                values = columns.setdefault(name, [None] * table.num_rows)
                values[index] = encode_motion(motion, name, axis=axis)
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink, compression="zstd")
        store.write_bytes(shard, sink.getvalue())
