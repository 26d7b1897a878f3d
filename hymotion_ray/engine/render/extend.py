"""More formats for finished clips, written from their npz; nothing is computed again. Ray-free.

The driver reads the manifest part by part and lists what lacks a format; worker processes write the
files; the driver then says so in the part, once all of its files are there. Cut off at any point,
the next run writes again what no part tells of.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hymotion_ray.engine import faults
from hymotion_ray.engine.identity import digest
from hymotion_ray.engine.lease import LeaseCheck
from hymotion_ray.engine.manifest import part_names, read_batches, set_formats
from hymotion_ray.engine.pulse import beat
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.engine.stage import ERROR, ERROR_CODE, Chunk
from hymotion_ray.engine.worklist import Worklist, target_key
from hymotion_ray.errors import InputError
from hymotion_ray.formats.atomic import Store, open_store
from hymotion_ray.formats.motions import decode_motion, encode_motion

_FILES_A_CHUNK = 32
ITEMS = pa.schema(
    [
        ("text", pa.string()),  # what the item is, for messages: its file
        ("part", pa.string()),
        ("rows", pa.list_(pa.int64())),
        ("places", pa.list_(pa.int64())),
        ("formats", pa.list_(pa.string())),
        (ERROR_CODE, pa.string()),
        (ERROR, pa.string()),
    ]
)
"""An item is a file that is read: a clip's npz, or a shard with several clips. `rows` are its
clips' rows in the manifest part, `places` theirs in the shard, `formats` what each lacks."""


def clip_bytes(store: Store, file: str) -> bytes:
    """The npz of a clip whose manifest row says `file`: a path, or a shard and a row number."""
    shard, sep, index = file.partition("#")
    if not sep:
        return store.read_bytes(file)
    table = pq.read_table(io.BytesIO(store.read_bytes(shard)), columns=["npz"])
    return bytes(table["npz"][int(index)].as_py())


# --- on the driver --------------------------------------------------------------------------------


@dataclass
class _Part:
    """A manifest part whose clips are being given formats."""

    num_left: int
    """Files still to be heard of."""
    formats: dict[int, str] = field(default_factory=dict)
    """By row, what the clip now has more."""


class Extension:
    """What is missing, as chunks, and what has been written, back in the manifest."""

    def __init__(self, store: Store, worklist: Worklist) -> None:
        self._store, self._worklist = store, worklist
        self._parts: dict[str, _Part] = {}

    def chunks(self) -> Iterator[Chunk]:
        """The files that lack a format; a shard is one item, so that one process writes it."""
        for name in part_names(self._store):
            items = list(self._items(name).values())
            if items:
                self._parts[name] = _Part(num_left=len(items))
            for start in range(0, len(items), _FILES_A_CHUNK):
                table = pa.Table.from_pylist(items[start : start + _FILES_A_CHUNK], schema=ITEMS)
                yield Chunk(key=f"{digest({'part': name})}-{start}", items=table)

    def _items(self, part: str) -> dict[str, dict[str, Any]]:
        columns = ["group", "stem", "status", "file"]
        items: dict[str, dict[str, Any]] = {}
        number = -1
        for batch in read_batches(self._store, columns, [part]):
            values = [batch.column(name).to_pylist() for name in columns]
            for group, stem, status, file in zip(*values, strict=True):
                number += 1
                if status != "done":
                    continue
                missing = self._worklist.missing_formats(target_key(group, stem))
                if missing:
                    path, _, place = file.partition("#")
                    empty = {"text": path, "part": part, "rows": [], "places": [], "formats": []}
                    item = items.setdefault(path, empty)
                    item["rows"].append(number)
                    item["places"].append(int(place or 0))
                    item["formats"].append(",".join(missing))
        return items

    def take(self, finished: pa.Table) -> tuple[int, int, str | None]:
        """Note what a chunk wrote; clips done and failed, and the first error, if any."""
        num_done = num_failed = 0
        error = None
        for item in finished.to_pylist():
            part = self._parts[item["part"]]
            part.num_left -= 1
            if item[ERROR_CODE] is None:
                num_done += len(item["rows"])
                part.formats.update(zip(item["rows"], item["formats"], strict=True))
            else:
                num_failed += len(item["rows"])
                error = error or f"{item['text']}: {item[ERROR]}"
            if not part.num_left:
                self._write(item["part"])
        return num_done, num_failed, error

    def close(self) -> None:
        """Note what was written of parts that are not through, when a run ends early."""
        for name in list(self._parts):
            self._write(name)

    def _write(self, name: str) -> None:
        part = self._parts.pop(name)
        if part.formats:
            faults.reach("extended", name)
            set_formats(self._store, name, part.formats)


# --- in a worker ----------------------------------------------------------------------------------


@dataclass
class ExtendStage:
    """Writes the missing formats of a chunk's files.

    In: the columns of `ITEMS`; out: the same, with an error where a clip could not be read.
    """

    settings: StageSettings
    lease: LeaseCheck | None = None
    name: str = "extend"
    _store: Store | None = field(default=None, init=False)

    def setup(self) -> None:
        """Open the output folder."""
        self._store = open_store(self.settings.out)

    def __call__(self, chunk: Chunk) -> Chunk:
        """Write file by file; one that is damaged fails alone."""
        if self.lease is not None:
            self.lease.require()
        items = chunk.items.to_pylist()
        errors: dict[int, tuple[str, str]] = {}
        for index in chunk.alive:
            item = items[index]
            try:
                if self.settings.layout == "shards":
                    self._extend_shard(item)
                else:
                    self._extend_file(item)
            except InputError as error:
                errors[index] = ("clip_unreadable", str(error))
        return chunk.with_errors(errors)

    def _extend_file(self, item: dict[str, Any]) -> None:
        assert self._store is not None, "setup runs before the first call"
        motion = decode_motion(self._store.read_bytes(item["text"]), "npz")
        stem = item["text"].rpartition(".")[0]
        for name in item["formats"][0].split(","):
            data = encode_motion(motion, name, axis=self.settings.axis)
            self._store.write_bytes(f"{stem}.{name}", data)
            beat()

    def _extend_shard(self, item: dict[str, Any]) -> None:
        assert self._store is not None
        table = pq.read_table(io.BytesIO(self._store.read_bytes(item["text"])))
        columns = {n: table[n].to_pylist() for n in table.column_names}
        for place, formats in zip(item["places"], item["formats"], strict=True):
            motion = decode_motion(columns["npz"][place], "npz")
            for name in formats.split(","):
                values = columns.setdefault(name, [None] * table.num_rows)
                values[place] = encode_motion(motion, name, axis=self.settings.axis)
            beat()
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink, compression="zstd")
        self._store.write_bytes(item["text"], sink.getvalue())
