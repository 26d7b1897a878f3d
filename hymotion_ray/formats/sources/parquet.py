"""Parquet shards as sources: a render's (npz bytes in a column) and an ingested dataset's.

Knows both layouts by their columns and reads row after row. A dataset's shard does not hold its
skeleton; the ratio of legs that it does hold sizes the motion, and the neutral rest pelvis stands
for the unknown one, a shift that standing the clip on the floor takes away.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from hymotion_ray.errors import InputError, SourceError
from hymotion_ray.formats.shard_table import ShardClip, from_table, is_shard
from hymotion_ray.formats.sources.arrays import NpzFile
from hymotion_ray.formats.sources.clip import Caption, SourceClip, SourceReject
from hymotion_ray.formats.sources.file_bytes import local_path
from hymotion_ray.formats.sources.hymotion_npz import read_hymotion_npz
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.smpl_body import SMPL_LEG_M, body_clip, sized_skeleton
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import PELVIS

_ROWS = 16
# Columns of the tables beside shards: samples of rejects, clips, rejects, files, items of a render.
_TABLES: tuple[set[str], ...] = (
    {"clip_id", "transl", "rot6d"},
    {"clip_id", "likeness", "shard"},
    {"code", "all_codes", "is_motion"},
    {"key", "path", "accepted"},
    {"identity", "status", "file"},
)
_DATASET_FPS = 30.0


def read_parquet_file(file: SourceFile) -> Iterator[SourceClip | SourceReject]:
    """Every row with a motion, as `<file>#<id or row>`; a bad one does not stop the others."""
    with local_path(file.path, file.member) as path:
        try:
            table = pq.ParquetFile(path)
        except (pa.ArrowException, OSError, ValueError) as cause:
            raise SourceError(f"not a Parquet file, or damaged: {cause}", "damaged") from cause
        with table:
            names = set(table.schema_arrow.names)
            if is_shard(table.schema_arrow):
                yield from _dataset_rows(file, table)
            elif any(columns <= names for columns in _TABLES):
                message = "a table of a dataset or a render, beside its shards"
                yield SourceReject(
                    name=file.name, code="document", message=message, is_motion=False
                )
            elif "npz" in names:
                yield from _render_rows(file, table, names)
            else:
                raise SourceError(
                    f"columns {', '.join(sorted(names)[:10])}; known are a render's shards (npz)"
                    " and a dataset's (clip_id, transl, rot6d)",
                    "no_motion",
                )


def _batches(table: pq.ParquetFile, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    try:
        yield from table.iter_batches(batch_size=_ROWS, columns=columns)
    except (pa.ArrowException, OSError) as cause:
        raise SourceError(f"damaged: {cause}", "damaged") from cause


def _render_rows(
    file: SourceFile, table: pq.ParquetFile, names: set[str]
) -> Iterator[SourceClip | SourceReject]:
    columns: list[str] = [name for name in ("npz", "id") if name in names]
    number = 0
    for batch in _batches(table, columns):
        for row in batch.to_pylist():
            name = f"{file.name}#{row.get('id', number)}"
            inner = SourceFile(path=file.path, name=name, kind="npz", size=len(row["npz"] or b""))
            number += 1
            try:
                with zipfile.ZipFile(io.BytesIO(row["npz"] or b"")) as archive:
                    yield from read_hymotion_npz(inner, NpzFile(archive))
            except SourceError as error:
                yield SourceReject(name=name, code=error.code, message=str(error))
            except (zipfile.BadZipFile, ValueError) as error:
                yield SourceReject(name=name, code="damaged", message=f"no npz: {error}")


def _dataset_rows(file: SourceFile, table: pq.ParquetFile) -> Iterator[SourceClip | SourceReject]:
    metadata: Any = table.schema_arrow.metadata
    for batch in _batches(table, None):
        part = pa.Table.from_batches([batch]).replace_schema_metadata(metadata)
        try:
            clips = list(from_table(part))
        except (InputError, ValueError, KeyError, TypeError) as cause:
            raise SourceError(f"a damaged or unknown shard: {cause}", "damaged") from cause
        for clip in clips:
            name = f"{file.name}#{clip.clip_id}"
            try:
                yield _of_shard(name, clip)
            except SourceError as error:
                yield SourceReject(name=name, code=error.code, message=str(error))


def _of_shard(name: str, clip: ShardClip) -> SourceClip:
    leg = SMPL_LEG_M if clip.source_leg_length is None else clip.source_leg_length * clip.scale
    skeleton = sized_skeleton(leg)
    known = {k: v for k, v in clip.provenance.items() if v is not None and k != "leg_length"}
    return body_clip(
        name,
        rot6d_to_matrix(torch.from_numpy(clip.rot6d.astype(np.float64))).numpy(),
        clip.transl.astype(np.float64) + skeleton.rest[PELVIS],
        _DATASET_FPS,
        source=clip.source,
        up="y",
        licence=clip.licence,
        skeleton=skeleton,
        captions=tuple(
            Caption(text=c.text, start=c.start, end=c.end, mirrored=c.mirrored)
            for c in clip.captions
        ),
        more={**known, "split_group": clip.split_group},
    )
