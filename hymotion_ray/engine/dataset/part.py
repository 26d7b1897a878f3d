"""What one chunk leaves in the scratch folder: its clips, its rejects, and an index of both.

Files of a chunk: `data-NNN.arrow` (shard rows and their feature moments), `samples.parquet` (a few
rejected motions for each reason, for pictures), and last `index.parquet`, one row a clip or reject:
a chunk is done when its index exists. Motion is read once more and thrown away, so it lies in
Arrow's own form: a third of Parquet's time to write and read, at the same size. Ray-free.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hymotion_ray.engine.dataset.items import FitPiece, Rejected, printable
from hymotion_ray.engine.dataset.likeness import likeness
from hymotion_ray.engine.dataset.moments import Moments
from hymotion_ray.engine.lease import WORK_FOLDER
from hymotion_ray.formats.atomic import Store
from hymotion_ray.formats.shard_table import QUALITY_NAMES, ShardClip, to_table
from hymotion_ray.formats.shards import FOLDER
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, PELVIS

SCRATCH_FOLDERS = (f"{WORK_FOLDER}/parts", f"{WORK_FOLDER}/{FOLDER}")
_FLUSH_BYTES = 24e6
_BATCH_ROWS = 8
_SAMPLES = 3
_MAX_MESSAGE = 2000
MOMENTS = "moments"

CLIP_COLUMNS = [
    ("clip_id", pa.string()),
    ("file", pa.string()),
    ("split_group", pa.string()),
    ("source", pa.string()),
    ("licence", pa.string()),
    ("num_frames", pa.int32()),
    ("num_captions", pa.int32()),
    ("likeness", pa.string()),
    ("mirrored", pa.string()),
    *((name, pa.float32()) for name in QUALITY_NAMES),
]
REJECT_COLUMNS = [
    ("file", pa.string()),
    ("name", pa.string()),
    ("code", pa.string()),
    ("all_codes", pa.string()),
    ("message", pa.string()),
    ("value", pa.float64()),
    ("limit", pa.float64()),
    ("num_frames", pa.int32()),
    ("is_motion", pa.bool_()),
]
INDEX = pa.schema(
    [
        ("clip", pa.struct([*CLIP_COLUMNS, ("data", pa.int32()), ("row", pa.int32())])),
        ("reject", pa.struct(REJECT_COLUMNS)),
    ]
)


class PartWriter:
    """Writes a chunk's clips as they come, a limited number in memory."""

    def __init__(self, store: Store, key: str, *, with_samples: bool) -> None:
        """key: of the chunk; with_samples: whether to keep rejected motions for pictures."""
        self._store, self._folder = store, part_folder(key)
        self._rows: list[dict[str, Any]] = []
        self._clips: list[ShardClip] = []
        self._moments: list[bytes] = []
        self._num_bytes, self._num_data = 0.0, 0
        self._samples: dict[str, list[ShardClip]] | None = {} if with_samples else None
        self.num_accepted = self.num_rejected = self.num_skipped = 0

    def add(self, items: Iterable[FitPiece | Rejected]) -> None:
        """Take every item of the last stage; motions are flushed to disk as they add up."""
        for item in items:
            if isinstance(item, Rejected):
                self._add_reject(item)
            else:
                self._add_piece(item)

    def close(self) -> None:
        """Write what is left, then the index, which makes the chunk done."""
        self._flush()
        if self._samples:
            kept = [row for code in sorted(self._samples) for row in self._samples[code]]
            self._write("samples", to_table(kept))
        self._write("index", pa.Table.from_pylist(self._rows, schema=INDEX))

    def _add_piece(self, piece: FitPiece) -> None:
        row, motion = piece.row, piece.motion
        own, mirrored = likeness(motion)
        self._rows.append(
            {
                "clip": {
                    "clip_id": row.clip_id,
                    "file": piece.file,
                    "split_group": row.split_group,
                    "source": row.source,
                    "licence": row.licence,
                    "num_frames": row.num_frames,
                    "num_captions": len(row.captions),
                    "likeness": own,
                    "mirrored": mirrored,
                    **row.quality,
                    "data": self._num_data,
                    "row": len(self._clips),
                }
            }
        )
        self._clips.append(row)
        self._moments.append(Moments.of(_features(motion)).to_bytes())
        self._num_bytes += row.transl.nbytes + row.rot6d.nbytes
        self.num_accepted += 1
        if self._num_bytes >= _FLUSH_BYTES:
            self._flush()

    def _add_reject(self, reject: Rejected) -> None:
        fields = {name: getattr(reject, name) for name, _ in REJECT_COLUMNS}
        fields["all_codes"] = ",".join(reject.all_codes or (reject.code,))
        fields["message"] = printable(reject.message[:_MAX_MESSAGE])
        self._rows.append({"reject": fields})
        self.num_skipped += not reject.is_motion
        self.num_rejected += reject.is_motion
        if self._samples is not None and reject.motion is not None:
            kept = self._samples.setdefault(reject.code, [])
            if len(kept) < _SAMPLES:
                kept.append(sample_row(reject, reject.motion))

    def _flush(self) -> None:
        if not self._clips:
            return
        table = to_table(self._clips).append_column(
            MOMENTS, pa.array(self._moments, pa.large_binary())
        )
        sink = pa.BufferOutputStream()
        options = ipc.IpcWriteOptions(compression="lz4")
        with ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=_BATCH_ROWS)
        self._store.write_bytes(_data_name(self._folder, self._num_data), sink.getvalue())
        self._clips, self._moments = [], []
        self._num_bytes, self._num_data = 0.0, self._num_data + 1

    def _write(self, name: str, table: pa.Table) -> None:
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="lz4", use_dictionary=False)
        self._store.write_bytes(f"{self._folder}/{name}.parquet", sink.getvalue())


def _features(motion: Motion) -> NDArray[np.float32]:
    """What `motion.features.encode_features` gives (L, 201), from the joints that are known."""
    body = motion.joints[:, :NUM_BODY_JOINTS] - motion.joints[:, PELVIS : PELVIS + 1]
    parts = [motion.transl, motion.rot6d.flatten(1), body.flatten(1)]
    return np.concatenate([part.numpy() for part in parts], axis=1)


def sample_row(reject: Rejected, motion: Motion) -> ShardClip:
    """A rejected motion as a shard row: its code is the group, its message the provenance."""
    return ShardClip(
        clip_id=reject.name,
        split_group=reject.code,
        source=reject.file,
        licence="",
        fps_src=motion.fps,
        transl=motion.transl.numpy().astype(np.float32),
        rot6d=motion.rot6d.numpy().astype(np.float32),
        source_leg_length=None,
        scale=1.0,
        pelvis_offset=None,
        provenance={"message": printable(reject.message[:_MAX_MESSAGE])},
    )


def part_folder(key: str) -> str:
    """A chunk's folder below the output folder."""
    return f"{WORK_FOLDER}/parts/{key}"


def delete_scratch(store: Store) -> None:
    """Remove the parts and notes of a round; the driver's lease beside them stays."""
    for folder in SCRATCH_FOLDERS:
        with contextlib.suppress(FileNotFoundError):
            store.filesystem.delete_dir(store.path(folder))


def done_chunks(store: Store) -> set[str]:
    """Keys of the chunks whose index exists."""
    names = store.list_files(f"{WORK_FOLDER}/parts", suffix="/index.parquet")
    return {name.split("/")[-2] for name in names}


def read_index(store: Store, key: str) -> list[dict[str, Any]]:
    """Rows of a chunk's index, with either `clip` or `reject`."""
    rows: list[dict[str, Any]] = _read(store, f"{part_folder(key)}/index.parquet").to_pylist()
    return rows


def read_samples(store: Store, key: str) -> pa.Table | None:
    """A chunk's rejected samples as shard rows, None where it has none."""
    name = f"{part_folder(key)}/samples.parquet"
    return _read(store, name) if store.exists(name) else None


def read_data(store: Store, key: str, data: int, rows: Sequence[int]) -> pa.Table:
    """Some of a chunk's shard rows number `data`, each with its moments, in the order of `rows`.

    Only the batches that hold them are read. Rows ascend.
    """
    path = store.path(_data_name(part_folder(key), data))
    numbers = sorted({row // _BATCH_ROWS for row in rows})
    with store.filesystem.open_input_file(path) as stream:
        file = ipc.open_file(stream)
        table = pa.Table.from_batches([file.get_batch(number) for number in numbers])
    first = {number: k * _BATCH_ROWS for k, number in enumerate(numbers)}
    return table.take([first[row // _BATCH_ROWS] + row % _BATCH_ROWS for row in rows])


def _data_name(folder: str, data: int) -> str:
    return f"{folder}/data-{data:03d}.arrow"


def _read(store: Store, name: str) -> pa.Table:
    return pq.read_table(io.BytesIO(store.read_bytes(name)))
