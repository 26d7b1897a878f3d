"""Features of prompts on disk, so that a service or a sweep encodes a prompt once. Knows no model.

One safetensors file a prompt, named by a hash of encoder and text. Several processes may share a
folder: files appear by atomic rename, are never changed, and one that has gone counts as a miss.
Off unless asked for: a job that sees each prompt once only loses time and disk to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from hymotion_ray.errors import OutputError
from hymotion_ray.text.condition import TextCondition, TextRow, stack_rows
from hymotion_ray.text.encoder import TextEncoder

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
DEFAULT_MAX_BYTES = 10 * 2**30
LEAVE_SHARE = 0.9  # what eviction leaves of the cap, so that it does not run at every write
LOOK_SHARE = 0.05  # bytes written, as a share of the cap, between looks at the whole folder
STALE_SECONDS = 3600  # a temporary file older than this was left by a process that died


class FeatureStore:
    """Features by (encoder, text), at most `max_bytes` of files; the least lately used go first."""

    def __init__(self, folder: Path | str, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Open or make the store in `folder`; `OutputError` when that cannot be."""
        if max_bytes <= 0:
            raise OutputError(f"the feature store's max_bytes is {max_bytes}; allowed: above 0")
        self.folder, self.max_bytes = Path(folder), max_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"the feature store's folder {self.folder} cannot be made ({error}); name another"
            ) from error
        self._until_look = 0  # look at the first write: other processes may have filled the folder

    def get(self, encoder: str, text: str) -> TextRow | None:
        """The stored features of `text`, bit for bit on the CPU; None when there are none.

        A damaged file is removed and counts as none.
        """
        path = self._path(encoder, text)
        try:
            with safe_open(path, framework="pt") as file:
                flags = json.loads(file.metadata()["truncated"])
                row = TextRow(
                    context=file.get_tensor("context"),
                    vector=file.get_tensor("vector"),
                    context_truncated=bool(flags[0]),
                    vector_truncated=bool(flags[1]),
                )
            os.utime(path)
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, RuntimeError, ValueError, LookupError, TypeError):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return row

    def put(self, encoder: str, text: str, row: TextRow) -> None:
        """Store the features of `text`; what is larger than the whole store is left out.

        Raises `OutputError` when the disk refuses.
        """
        flags = json.dumps([row.context_truncated, row.vector_truncated])
        content = save(
            {"context": row.context.cpu().contiguous(), "vector": row.vector.cpu().contiguous()},
            {"truncated": flags},
        )
        if len(content) > self.max_bytes:
            return
        path = self._path(encoder, text)
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise OutputError(
                f"the feature store in {self.folder} cannot be written ({error}); free some space, "
                "or run without a store"
            ) from error
        self._until_look -= len(content)
        if self._until_look <= 0:
            self.evict()

    def evict(self) -> int:
        """Delete the least lately used files beyond the cap; returns the bytes that stay.

        Two processes that evict at once pick the same files, so they need no lock.
        """
        files = [(*_use(path), path) for path in self.folder.glob(f"??/*{SUFFIX}")]
        total = sum(size for _, size, _ in files)
        if total > self.max_bytes:
            for _, size, path in sorted(files):
                if total <= LEAVE_SHARE * self.max_bytes:
                    break
                with contextlib.suppress(OSError):
                    path.unlink()
                total -= size
        for temporary in self.folder.glob("??/.*.tmp"):
            if time.time() - _use(temporary)[0] > STALE_SECONDS:
                with contextlib.suppress(OSError):
                    temporary.unlink()
        room = max(self.max_bytes - total, 0)
        self._until_look = int(min(room, LOOK_SHARE * self.max_bytes))
        return total

    def _path(self, encoder: str, text: str) -> Path:
        name = hashlib.sha256(json.dumps([encoder, text]).encode()).hexdigest()
        return self.folder / name[:2] / f"{name}{SUFFIX}"


class StoringEncoder:
    """An encoder that asks a store first. Features are the same bits as without the store."""

    def __init__(self, encoder: TextEncoder, store: FeatureStore) -> None:
        """Both stay the caller's; features are kept apart by fingerprint and compute class."""
        self.encoder, self.store = encoder, store
        self._writable = True
        self._key = f"{encoder.fingerprint} {encoder.compute_class}"

    @property
    def fingerprint(self) -> str:
        """The encoder's own."""
        return self.encoder.fingerprint

    @property
    def compute_class(self) -> str:
        """The encoder's own."""
        return self.encoder.compute_class

    @property
    def context_dim(self) -> int:
        """Width C of the context features."""
        return self.encoder.context_dim

    @property
    def vector_dim(self) -> int:
        """Width V of the vector feature."""
        return self.encoder.vector_dim

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Context tokens of each text."""
        return self.encoder.count_tokens(texts)

    def encode(self, texts: Sequence[str]) -> TextCondition:
        """The condition of `texts`, on the CPU; what the store lacks is encoded and stored."""
        if not texts:
            return self.encoder.encode(texts)
        rows = {text: self.store.get(self._key, text) for text in dict.fromkeys(texts)}
        lacking = [text for text, row in rows.items() if row is None]
        if lacking:
            condition = self.encoder.encode(lacking).to("cpu")
            for i, text in enumerate(lacking):
                fresh = condition.row(i)
                rows[text] = fresh
                self._put(text, fresh)
        return stack_rows([row for text in texts if (row := rows[text]) is not None])

    def _put(self, text: str, row: TextRow) -> None:
        """Store a row; a store that cannot be written costs time, not the job, and says so once."""
        if not self._writable:
            return
        try:
            self.store.put(self._key, text, row)
        except OutputError as error:
            self._writable = False
            logger.warning("features are no longer stored: %s", error)


def _use(path: Path) -> tuple[float, int]:
    """When a file was last used, and its size; a file that has gone takes no room."""
    try:
        stat = path.stat()
    except OSError:
        return 0.0, 0
    return stat.st_mtime, stat.st_size
