"""What is done: one Parquet row an item, written after the item's files. Ray-free.

Each chunk of work writes one part, named by the chunk, so that a chunk computed twice leaves one
part. Parts are merged into larger ones as they become many. A merged part names those it replaces,
and readers pass these by: a merge that is cut off at any point leaves every row once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hymotion_ray.engine import faults
from hymotion_ray.engine.identity import digest
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store

MANIFEST_SCHEMA_VERSION = 1
FOLDER = "manifest"
MERGE_AT = 1_000
"""Parts of single chunks that are merged while a job runs."""
_MERGED_ROWS = 100_000
_BATCH_ROWS = 8_192
_VERSION_KEY, _REPLACES_KEY = b"hymotion_ray.manifest", b"hymotion_ray.replaces"

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
    metadata={_VERSION_KEY: str(MANIFEST_SCHEMA_VERSION)},
)


def part_name(key: str) -> str:
    """The part that the chunk of this key writes."""
    return f"{FOLDER}/part-{key}.parquet"


def write_part(store: Store, key: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows of one chunk; the same key overwrites."""
    _write(store, part_name(key), pa.Table.from_pylist(rows, schema=SCHEMA))


def part_names(store: Store) -> list[str]:
    """The manifest's files that count, in order: those not replaced by a merged one."""
    names = store.list_files(FOLDER, suffix=".parquet")
    replaced = {old for name in names if _is_merged(name) for old in _replaces(store, name)}
    return [name for name in names if name not in replaced]


def read_batches(
    store: Store, columns: list[str] | None = None, names: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of the manifest (or of the parts in `names`) in batches, part by part."""
    for name in part_names(store) if names is None else names:
        with _open(store, name) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)


def read_rows(store: Store, name: str) -> list[dict[str, Any]]:
    """All rows of one part."""
    with _open(store, name) as file:
        rows: list[dict[str, Any]] = file.read().to_pylist()
    return rows


def count_rows(store: Store) -> int:
    """Rows of the manifest, from the ends of its files."""
    total = 0
    for name in part_names(store):
        with _open(store, name) as file:
            total += file.metadata.num_rows
    return total


def rewrite_part(store: Store, name: str, rows: list[dict[str, Any]]) -> None:
    """Replace a part by one with other rows, whole or not at all."""
    replaces = _replaces(store, name) if _is_merged(name) else []
    _write(store, name, pa.Table.from_pylist(rows, schema=SCHEMA), replaces)


def set_formats(store: Store, name: str, added: Mapping[int, str]) -> None:
    """Add to the formats of some rows of a part, by row number; whole or not at all."""
    replaces = _replaces(store, name) if _is_merged(name) else []
    with _open(store, name) as file:
        table = file.read()
    at = table.schema.get_field_index("formats")
    held = table.column(at).to_pylist()
    for row, formats in added.items():
        held[row] = f"{held[row]},{formats}"
    _write(store, name, table.set_column(at, "formats", pa.array(held, pa.string())), replaces)


def remove_replaced(store: Store) -> None:
    """Remove the parts that a merge which was cut off has left beside their merged one."""
    names = store.list_files(FOLDER, suffix=".parquet")
    for name in set(names) - set(part_names(store)):
        store.remove(name)


def merge_parts(store: Store, names: Sequence[str]) -> None:
    """Merge parts of single chunks into larger ones, and remove them."""
    pending: list[pa.Table] = []
    merged: list[str] = []
    num_rows = 0
    for place, name in enumerate(names):
        with _open(store, name) as file:
            pending.append(file.read())
        merged.append(name)
        num_rows += pending[-1].num_rows
        if num_rows >= _MERGED_ROWS or place == len(names) - 1:
            target = f"{FOLDER}/merged-{digest({'parts': merged})}.parquet"
            _write(store, target, pa.concat_tables(pending), merged)
            faults.reach("merged", target)
            for old in merged:
                store.remove(old)
                faults.reach("merge-removed", old)
            pending, merged, num_rows = [], [], 0


def single_parts(store: Store) -> list[str]:
    """The parts of single chunks."""
    return [name for name in part_names(store) if not _is_merged(name)]


def _is_merged(name: str) -> bool:
    return name.startswith(f"{FOLDER}/merged-")


def _replaces(store: Store, name: str) -> list[str]:
    with _open(store, name) as file:
        held = file.schema_arrow.metadata.get(_REPLACES_KEY, b"[]")
    names: list[str] = json.loads(held)
    return names


def _write(store: Store, name: str, table: pa.Table, replaces: Sequence[str] = ()) -> None:
    metadata = dict(SCHEMA.metadata)
    if replaces:
        metadata[_REPLACES_KEY] = json.dumps(list(replaces)).encode()
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    store.write_bytes(name, sink.getvalue())


def _open(store: Store, name: str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(store.filesystem.open_input_file(store.path(name)), pre_buffer=True)
    except pa.ArrowInvalid as error:
        raise OutputError(
            f"manifest part {store.url(name)} is not readable as Parquet ({error}); parts are"
            " written whole or not at all, so something else changed it: remove that file, and its"
            " items are rendered again"
        ) from error
    except OSError as error:
        raise OutputError(f"manifest part {store.url(name)} cannot be read: {error}") from error
    version = (file.schema_arrow.metadata or {}).get(_VERSION_KEY, b"none").decode()
    if version != str(MANIFEST_SCHEMA_VERSION):
        raise OutputError(
            f"manifest part {store.url(name)} has schema version {version}; allowed:"
            f" {MANIFEST_SCHEMA_VERSION}; use another --out, or the release that wrote it"
        )
    return file
