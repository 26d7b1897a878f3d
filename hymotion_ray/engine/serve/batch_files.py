"""Files of batches: JSONL that clients upload, and what comes of it. Ray-free; knows no HTTP.

    files/<key>/<id>.json     the file object
    files/<key>/<id>.jsonl    its content
    batches/<key>/<id>.json   a batch's record (`batches.py`)
    batches/<key>/<id>/...    parts of its output, and the sign that it is to be cancelled

The objects are those of the OpenAI batch interface, so that its clients work unchanged.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.atomic import Store

BATCH_SCHEMA_VERSION = 1
ENDPOINT = "/v1/motions"
BATCH_ENDED = frozenset(["failed", "completed", "expired", "cancelled"])
FILE_ID = r"^file-[0-9a-f]{12,40}$"
BATCH_ID = r"^batch_[0-9a-f]{12,40}$"
_PLAIN_NAME = re.compile(r"[^\w.() -]")
Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
    "cancelled",
]  # fmt: skip


@dataclass
class StoredFile:
    """A file object; `bytes` is its size, times are Unix seconds."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


@dataclass
class Counts:
    """Lines of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass
class Batch:
    """A batch object, and below it what is the server's own."""

    id: str
    input_file_id: str
    created_at: int
    expires_at: int
    object: Literal["batch"] = "batch"
    endpoint: str = ENDPOINT
    completion_window: str = "24h"
    status: Status = "validating"
    errors: dict[str, Any] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = field(default_factory=Counts)
    metadata: dict[str, str] | None = None
    key: str = ""
    owner: str = ""

    def document(self) -> dict[str, Any]:
        """The object as clients see it."""
        return {name: v for name, v in asdict(self).items() if name not in ("key", "owner")}


class BatchStore:
    """Files and batches of all keys. Calls block; any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # --- files ---

    def add_file(self, key: str, filename: str, content: bytes, purpose: str) -> StoredFile:
        """Keep a file."""
        assert purpose in ("batch", "batch_output")
        name = _PLAIN_NAME.sub("_", filename)[:120] or "input.jsonl"
        kept = StoredFile(
            id=f"file-{int(time.time() * 1000):012x}{secrets.token_hex(6)}",
            bytes=len(content),
            created_at=int(time.time()),
            filename=name,
            purpose="batch" if purpose == "batch" else "batch_output",
        )
        self._store.write_bytes(f"files/{key}/{kept.id}.jsonl", content)
        self._store.write_bytes(f"files/{key}/{kept.id}.json", json.dumps(asdict(kept)).encode())
        return kept

    def file(self, key: str, file_id: str) -> StoredFile | None:
        """A file of a key; None when there is none."""
        record = self._read(f"files/{key}/{file_id}.json")
        return None if record is None else StoredFile(**record)

    def content(self, key: str, file_id: str) -> bytes | None:
        """What a file holds; None when there is none."""
        name = f"files/{key}/{file_id}.jsonl"
        return self._store.read_bytes(name) if self._store.exists(name) else None

    def files(self, key: str) -> list[StoredFile]:
        """All files of a key, the newest first."""
        names = self._store.list_files(f"files/{key}", ".json")
        found = [self._read(name) for name in reversed(names)]
        return [StoredFile(**record) for record in found if record is not None]

    def remove_file(self, key: str, file_id: str) -> None:
        """Forget a file."""
        for suffix in (".json", ".jsonl"):
            self._store.remove(f"files/{key}/{file_id}{suffix}")

    # --- batches ---

    def save(self, batch: Batch) -> None:
        """Write a batch's record."""
        record = {"schema": BATCH_SCHEMA_VERSION} | asdict(batch)
        self._store.write_bytes(f"batches/{batch.key}/{batch.id}.json", json.dumps(record).encode())

    def batch(self, key: str, batch_id: str) -> Batch | None:
        """A batch of a key, with a cancel that its process may not have seen yet; None: none."""
        batch = self._batch(f"batches/{key}/{batch_id}.json")
        if batch is not None and batch.status not in BATCH_ENDED and self.is_cancelled(batch):
            batch.status = "cancelling"
        return batch

    def batches(self, key: str | None = None) -> list[Batch]:
        """All batches of a key (None: of all keys), the newest first."""
        folder = "batches" if key is None else f"batches/{key}"
        names = [n for n in self._store.list_files(folder, ".json") if n.count("/") == 2]
        newest = sorted(names, key=lambda name: name.rpartition("/")[2], reverse=True)
        return [batch for name in newest if (batch := self._batch(name)) is not None]

    def ask_cancel(self, batch: Batch) -> None:
        """Leave the sign that a batch is to be cancelled, for the process that runs it."""
        self._store.write_bytes(f"batches/{batch.key}/{batch.id}/cancel", b"")

    def is_cancelled(self, batch: Batch) -> bool:
        """Whether that sign is there."""
        return self._store.exists(f"batches/{batch.key}/{batch.id}/cancel")

    def add_part(self, batch: Batch, rows: list[dict[str, Any]]) -> None:
        """Keep finished lines: rows with `number`, `ok` and the line's `row`."""
        name = f"batches/{batch.key}/{batch.id}/{time.time_ns():020d}.part"
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self._store.write_bytes(name, text.encode())

    def parts(self, batch: Batch) -> list[dict[str, Any]]:
        """All kept rows, each number once."""
        rows: dict[int, dict[str, Any]] = {}
        for name in self._store.list_files(f"batches/{batch.key}/{batch.id}", ".part"):
            for line in self._store.read_bytes(name).splitlines():
                row = json.loads(line)
                rows.setdefault(row["number"], row)
        return [rows[number] for number in sorted(rows)]

    def clear(self, batch: Batch) -> None:
        """Remove parts and signs of a batch that has ended."""
        for name in self._store.list_files(f"batches/{batch.key}/{batch.id}"):
            self._store.remove(name)

    def sweep(self, ttl_s: float, now: float) -> int:
        """Remove batches that ended more than `ttl_s` ago, and files as old; how many files."""
        for batch in self.batches():
            ended = batch.completed_at or batch.failed_at or batch.cancelled_at or batch.expired_at
            if ended is not None and now - ended > ttl_s:
                self.clear(batch)  # a process that died right at the end did not
                self._store.remove(f"batches/{batch.key}/{batch.id}.json")
        used = {batch.input_file_id for batch in self.batches()}
        removed = 0
        for name in self._store.list_files("files", ".json"):
            record = self._read(name)
            if record is None or now - record["created_at"] <= ttl_s or record["id"] in used:
                continue
            self.remove_file(name.split("/")[1], record["id"])
            removed += 1
        return removed

    def _batch(self, name: str) -> Batch | None:
        record = self._read(name)
        if record is None:
            return None
        if record.pop("schema", None) != BATCH_SCHEMA_VERSION:
            raise InputError(
                f"{self._store.url(name)} was written by another version of hymotion-ray; move the"
                " folder `batches` away to start over"
            )
        return Batch(**record | {"request_counts": Counts(**record["request_counts"])})

    def _read(self, name: str) -> dict[str, Any] | None:
        if not self._store.exists(name):
            return None
        try:
            record: dict[str, Any] = json.loads(self._store.read_bytes(name))
        except OutputError:
            return None  # removed in between
        except ValueError as error:
            raise InputError(f"{self._store.url(name)} is damaged ({error})") from error
        return record
