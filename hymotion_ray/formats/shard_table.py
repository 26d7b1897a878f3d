"""One shard as bytes: a Parquet table with one row a clip, written and read. Knows its columns.

It knows schema, encodings and row groups. It knows no folder, no manifest and no order: that is
`shards.py`.

Motion is stored as float32. Half floats would take 17 instead of 43 MB an hour (135 clips of CMU,
DeepMimic and others), but their steps, a millimetre at 2 m from the origin, are up to 70 times the
jitter of a quiet clip, move joints by up to 4 mm, and no round trip would be the identity any more.
Bytes of the floats are split by significance (BYTE_STREAM_SPLIT) before zstd; without, 48 MB.

Shape letters: L frames.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hymotion_ray.errors import InputError
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS

SHARD_SCHEMA_VERSION = 1
_KEY = b"hymotion_ray.shard"
_LEVEL = 2
_SPLIT_COLUMNS = ["transl.list.element", "rot6d.list.element"]

Floats = NDArray[np.float32]
Value = str | float | int | bool | None

CAPTION = pa.struct(
    [
        ("text", pa.string()),
        ("start", pa.float32()),
        ("end", pa.float32()),
        ("mirrored", pa.bool_()),
    ]
)
QUALITY_NAMES = (
    "fall",
    "travel",
    "speed",
    "root_speed",
    "turn",
    "static_share",
    "upside_down",
    "fit_error",
    "skate",
    "skate_speed",
    "float",
    "hover",
    "jitter",
    "facing",
)
"""Names of the quality numbers, as in `motion.gates.ClipNumbers`."""
SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("split_group", pa.string()),
        ("source", pa.string()),
        ("licence", pa.string()),
        ("fps_src", pa.float32()),
        ("num_frames", pa.int32()),
        ("transl", pa.list_(pa.float32())),  # (L, 3), row by row
        ("rot6d", pa.list_(pa.float32())),  # (L, 22, 6), row by row
        ("source_leg_length", pa.float32()),
        ("scale", pa.float32()),
        ("pelvis_offset", pa.list_(pa.float32())),  # (3,), or null where the source has none
        ("captions", pa.list_(CAPTION)),
        ("provenance", pa.string()),  # JSON
        ("quality", pa.struct([(name, pa.float32()) for name in QUALITY_NAMES])),
    ]
)


@dataclass(frozen=True)
class ShardCaption:
    """What is said of a part of a clip."""

    text: str
    start: float
    """Seconds from the clip's first frame."""
    end: float
    """Seconds; the clip's length at most."""
    mirrored: bool = False
    """Whether the text tells what the mirrored clip shows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardClip:
    """One clip of a dataset: 30 frames a second, Y up, facing +Z, on the floor, from x = z = 0."""

    clip_id: str
    """Unique in the dataset."""
    split_group: str
    """What must not be torn apart between splits: the take that windows and mirrors come from."""
    source: str
    """Collection and file."""
    licence: str
    """Licence of the motion."""
    fps_src: float
    """Frame rate of the source."""
    transl: Floats
    """(L, 3): the pelvis is at the dataset skeleton's rest pelvis plus this, metres."""
    rot6d: Floats
    """(L, 22, 6) local rotations, two interleaved columns each."""
    source_leg_length: float | None
    """Thigh plus shin of the source's body in metres."""
    scale: float
    """The dataset skeleton's leg over the source's: what lengths were multiplied by."""
    pelvis_offset: tuple[float, float, float] | None
    """Rest position of the source's pelvis in metres, where its translation excludes it."""
    captions: tuple[ShardCaption, ...] = ()
    provenance: dict[str, Value] = field(default_factory=dict)
    """How axis, unit, rate and cut were found."""
    quality: dict[str, float | None] = field(default_factory=dict)
    """Numbers of `motion.gates.ClipNumbers`."""

    @property
    def num_frames(self) -> int:
        """Frames of the clip."""
        return len(self.transl)


def to_table(clips: Sequence[ShardClip]) -> pa.Table:
    """Clips as a table of `SCHEMA`."""
    columns: dict[str, list[Any]] = {
        name: [getattr(clip, name) for clip in clips]
        for name in SCHEMA.names
        if name not in ("transl", "rot6d", "captions", "provenance")
    }
    columns["captions"] = [[vars(caption) for caption in clip.captions] for clip in clips]
    columns["provenance"] = [
        json.dumps(clip.provenance, ensure_ascii=False, sort_keys=True) for clip in clips
    ]
    arrays = {name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}
    arrays["transl"] = _ragged([clip.transl for clip in clips])
    arrays["rot6d"] = _ragged([clip.rot6d for clip in clips])
    return pa.table([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


def from_table(table: pa.Table) -> Iterator[ShardClip]:
    """The clips of a table of `SCHEMA`, each with arrays of its own."""
    transl = _unragged(table["transl"], 3)
    rot6d = _unragged(table["rot6d"], NUM_BODY_JOINTS * 6)
    rest = table.drop_columns(["transl", "rot6d"]).to_pylist()
    for row, clip_transl, clip_rot6d in zip(rest, transl, rot6d, strict=True):
        offset = row["pelvis_offset"]
        num_frames = row.pop("num_frames")
        if len(clip_transl) != num_frames or len(clip_rot6d) != num_frames:
            raise InputError(
                f"clip {row['clip_id']!r} has {len(clip_transl)} and {len(clip_rot6d)} frames;"
                f" its row says {num_frames}"
            )
        row |= {
            "transl": clip_transl,
            "rot6d": clip_rot6d.reshape(-1, NUM_BODY_JOINTS, 6),
            "pelvis_offset": None if offset is None else tuple(offset),
            "captions": tuple(ShardCaption(**caption) for caption in row["captions"]),
            "provenance": json.loads(row["provenance"]),
        }
        yield ShardClip(**row)


def encode_shard(table: pa.Table, row_group_bytes: float) -> bytes:
    """The bytes of a shard, the same for the same rows.

    row_group_bytes: what a row group shall hold of unpacked motion; a single clip may be more.
    """
    clip_bytes = max(1.0, table.nbytes / max(1, table.num_rows))
    metadata = {_KEY: str(SHARD_SCHEMA_VERSION).encode()}
    sink = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(metadata),
        sink,
        compression="zstd",
        compression_level=_LEVEL,
        row_group_size=max(1, int(row_group_bytes / clip_bytes)),
        use_dictionary=["source", "licence"],
        column_encoding=None,
        use_byte_stream_split=_SPLIT_COLUMNS,
    )
    return sink.getvalue()


def is_shard(schema: pa.Schema) -> bool:
    """Whether a Parquet file of this schema is a shard: other tables may have its columns."""
    return _KEY in (schema.metadata or {})


def open_shard(content: bytes, name: str) -> pq.ParquetFile:
    """The Parquet file in a shard's bytes; `InputError` names what is none, or another form."""
    try:
        file = pq.ParquetFile(io.BytesIO(content))
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{name} is no shard, or a torn one ({error}); shards are written whole or not at all,"
            " so something else changed it: restore it, or ingest into a new folder"
        ) from error
    version = (file.schema_arrow.metadata or {}).get(_KEY, b"none").decode()
    if version != str(SHARD_SCHEMA_VERSION):
        raise InputError(
            f"{name} has the shard schema version {version}; allowed: {SHARD_SCHEMA_VERSION}; use"
            " the release that wrote it, or ingest again"
        )
    return file


def _ragged(arrays: Sequence[Floats]) -> pa.Array:
    """A list column of flattened arrays, without a Python object a number."""
    flat = [np.ascontiguousarray(array, dtype=np.float32).ravel() for array in arrays]
    offsets = np.cumsum([0, *(len(array) for array in flat)], dtype=np.int64)
    assert offsets[-1] < 2**31, "a table of one shard holds less than 2^31 numbers"
    values = pa.array(np.concatenate(flat) if flat else np.zeros(0, np.float32))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _unragged(column: pa.ChunkedArray, width: int) -> Iterator[Floats]:
    for chunk in column.chunks:
        # `values` is the whole child array of a slice too, which is what the offsets count in.
        offsets, values = chunk.offsets.to_numpy(), chunk.values.to_numpy()
        for start, end in pairwise(offsets):
            yield values[start:end].reshape(-1, width).copy()
