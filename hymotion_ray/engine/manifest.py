"""What is done: one Parquet row an item, written after the item's files. Ray-free.

Each chunk of work writes one part, named by the chunk, so that a chunk computed twice leaves one
part. Parts are merged into larger ones when there are many. An item's latest word counts: `done`
over `failed`, then the higher attempt.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hymotion_ray.engine.identity import digest
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store

MANIFEST_SCHEMA_VERSION = 1
FOLDER = "manifest"
_MERGE_ABOVE = 1_000
_MERGED_ROWS = 100_000

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("group", pa.string()),
        ("seed", pa.int64()),
        ("stem", pa.string()),
        ("identity", pa.string()),
        ("status", pa.string()),
        ("error_code", pa.string()),
        ("error", pa.string()),
        ("file", pa.string()),
        ("sha256", pa.string()),
        ("formats", pa.string()),
        ("num_frames", pa.int32()),
        ("text", pa.string()),
        ("original_text", pa.string()),
        ("noise_seed", pa.int64()),
        ("seconds", pa.float32()),
        ("device", pa.string()),
        ("cell", pa.string()),
        ("precision", pa.string()),
        ("degradations", pa.string()),
        ("attempt", pa.int32()),
        ("truncated", pa.string()),
        ("warnings", pa.string()),
        ("skate", pa.float32()),
        ("float", pa.float32()),
        ("jitter", pa.float32()),
        ("facing", pa.float32()),
    ],
    metadata={"hymotion_ray.manifest": str(MANIFEST_SCHEMA_VERSION)},
)


def write_part(store: Store, key: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows of one chunk; the same key overwrites."""
    _write(store, f"{FOLDER}/part-{key}.parquet", pa.Table.from_pylist(rows, schema=SCHEMA))


def read_batches(store: Store, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """All rows of the manifest, in batches, part by part in order of their names."""
    for name in part_names(store):
        yield from _open(store, name).iter_batches(batch_size=8192, columns=columns)


def part_names(store: Store) -> list[str]:
    """The manifest's files."""
    return store.list_files(FOLDER, suffix=".parquet")


def read_rows(store: Store, name: str) -> list[dict[str, Any]]:
    """All rows of one part."""
    rows: list[dict[str, Any]] = _open(store, name).read().to_pylist()
    return rows


def rewrite_part(store: Store, name: str, rows: list[dict[str, Any]]) -> None:
    """Replace a part by one with other rows, whole or not at all."""
    _write(store, name, pa.Table.from_pylist(rows, schema=SCHEMA))


def merge_parts(store: Store) -> None:
    """Merge the parts of single chunks into larger ones, when there are many.

    The merged part is written before the small ones go: a kill in between leaves rows twice, which
    readers take for one.
    """
    names = [n for n in part_names(store) if "/part-" in n]
    if len(names) < _MERGE_ABOVE:
        return
    pending: list[pa.Table] = []
    merged: list[str] = []
    num_rows = 0
    for name in names:
        table = _open(store, name).read()
        pending.append(table)
        merged.append(name)
        num_rows += table.num_rows
        if num_rows >= _MERGED_ROWS or name == names[-1]:
            key = digest({"parts": merged})
            _write(store, f"{FOLDER}/merged-{key}.parquet", pa.concat_tables(pending))
            for old in merged:
                store.remove(old)
            pending, merged, num_rows = [], [], 0


def _write(store: Store, name: str, table: pa.Table) -> None:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    store.write_bytes(name, sink.getvalue())


def _open(store: Store, name: str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(io.BytesIO(store.read_bytes(name)))
    except pa.ArrowInvalid as error:
        raise OutputError(
            f"manifest part {store.url(name)} is not readable as Parquet ({error}); parts are"
            " written whole or not at all, so something else changed it: remove that file, and its"
            " items are rendered again"
        ) from error
    version = (file.schema_arrow.metadata or {}).get(b"hymotion_ray.manifest", b"none").decode()
    if version != str(MANIFEST_SCHEMA_VERSION):
        raise OutputError(
            f"manifest part {store.url(name)} has schema version {version}; allowed:"
            f" {MANIFEST_SCHEMA_VERSION}; use another --out, or the release that wrote it"
        )
    return file
