"""Stage: sources -> the list of files, and the work that is left of it, in chunks. Ray-free.

The list lies in a temporary SQLite file, so that a million files need no more memory than ten. Work
goes in the order of a hash of the files' names: that scatters a collection's neighbours over all
shards, which is half of shuffling, and is the same order in every run.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hymotion_ray.config.ingest import WorkConfig
from hymotion_ray.engine.dataset.items import Rejected, printable
from hymotion_ray.engine.dataset.reader import Reader, is_below
from hymotion_ray.engine.identity import digest
from hymotion_ray.formats.sources import SourceFile

_TABLES = """
CREATE TABLE known (key TEXT PRIMARY KEY, size INTEGER, path TEXT) WITHOUT ROWID;
CREATE TABLE listed (key TEXT PRIMARY KEY, path TEXT, size INTEGER, is_new INTEGER) WITHOUT ROWID;
CREATE TABLE work (place BLOB, key TEXT, size INTEGER, source TEXT, PRIMARY KEY (place, key))
    WITHOUT ROWID;
"""
_MB = 1e6


@dataclass(frozen=True)
class WorkFile:
    """A source file and its key in the dataset."""

    key: str
    source: SourceFile


@dataclass(frozen=True)
class WorkChunk:
    """Files that one task reads."""

    key: str
    """A function of the files and of what decides how clips look."""
    files: tuple[WorkFile, ...]

    def to_json(self) -> str:
        """The files as JSON text."""
        return json.dumps([[file.key, asdict(file.source)] for file in self.files])

    @classmethod
    def from_json(cls, key: str, text: str) -> WorkChunk:
        """The chunk of a key and of text made by `to_json`."""
        pairs = json.loads(text)
        return cls(key, tuple(WorkFile(name, SourceFile(**fields)) for name, fields in pairs))


@dataclass
class ListCounts:
    """What the sources hold, and what of it is still to be read."""

    files: int = 0
    """Files of the sources, what is no motion included."""
    done: int = 0
    """Files read by an earlier run into this folder."""
    new: int = 0
    """Files to be read."""
    moved: int = 0
    """Done files that lie elsewhere than they did."""
    twice: int = 0
    """Files that two sources lead to."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Files by kind."""


class FileList:
    """The files of one run. Use as a context manager; the SQLite file is the caller's to remove."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-32768"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(_TABLES)
        self._connection.execute("BEGIN")
        self.counts = ListCounts()

    def __enter__(self) -> FileList:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add_known(self, rows: Iterable[tuple[str, int, str]]) -> None:
        """Files (key, size, path) that are in the dataset."""
        self._connection.executemany("INSERT OR REPLACE INTO known VALUES (?, ?, ?)", rows)

    def add_sources(
        self, reader: Reader, roots: Iterable[str], out: str | None = None
    ) -> Iterator[Rejected]:
        """Put the files below `roots` on the list; gives those whose name is another file's.

        out: the dataset's own folder, whose files are left out where it lies among the sources.
        """
        for root in roots:
            for source in reader.list(root):
                if out is not None and is_below(source, out):
                    continue
                reject = self._add(WorkFile(file_key(root, source), source))
                if reject is not None:
                    yield reject

    def _add(self, file: WorkFile) -> Rejected | None:
        key, source, counts = file.key, file.source, self.counts
        path = _absolute(source.path) + (f"!{source.member}" if source.member else "")
        path = printable(path)
        row = self._one("SELECT path FROM listed WHERE key = ?", key)
        if row is not None and row[0] == path:
            counts.twice += 1
            return None
        counts.files += 1
        counts.kinds[source.kind] += 1
        if row is not None:
            return self._conflict(file, path, f"the file {row[0]} of the same sources")
        known = self._one("SELECT size, path FROM known WHERE key = ?", key)
        is_new = known is None
        if known is not None and known[0] != source.size:
            words = "it held other data when" if known[1] == path else f"{known[1]} when"
            return self._conflict(file, path, f"{words} this dataset was made of it")
        self._execute("INSERT INTO listed VALUES (?, ?, ?, ?)", key, path, source.size, is_new)
        if known is not None:
            counts.done += 1
            counts.moved += known[1] != path
            return None
        counts.new += 1
        place = hashlib.sha256(key.encode()).digest()[:8]
        fields = json.dumps(asdict(replace(source, path=_absolute(source.path))))
        self._execute("INSERT INTO work VALUES (?, ?, ?, ?)", place, key, source.size, fields)
        return None

    def _conflict(self, file: WorkFile, path: str, other: str) -> Rejected | None:
        """A reject for a file whose key is taken; known by size, so that it is told once."""
        key = f"{file.key}@{file.source.size}"
        if self._one("SELECT path FROM listed WHERE key = ?", key) is not None:
            return None
        is_new = self._one("SELECT size FROM known WHERE key = ?", key) is None
        self._execute("INSERT INTO listed VALUES (?, ?, ?, ?)", key, path, file.source.size, is_new)
        self.counts.done += not is_new
        if not is_new:
            return None
        return Rejected(
            file=key,
            name=file.key,
            code="name_taken",
            message=f"{path}: the name {file.key!r} belongs to {other}; give the source folder"
            " another name, or ingest into a new folder",
        )

    def rounds(self, work: WorkConfig, settings: str) -> Iterator[list[WorkChunk]]:
        """The work in rounds of chunks sized by `work`; `settings` enters the chunks' keys."""
        chunks: list[WorkChunk] = []
        num_files, num_bytes = 0, 0
        for files in self._chunks(work):
            size = sum(file.source.size for file in files)
            over = num_files + len(files) > work.round_files
            if chunks and (over or num_bytes + size > work.round_mb * _MB):
                yield chunks
                chunks, num_files, num_bytes = [], 0, 0
            names = [[file.key, file.source.size] for file in files]
            chunks.append(WorkChunk(digest({"files": names, "settings": settings}), tuple(files)))
            num_files, num_bytes = num_files + len(files), num_bytes + size
        if chunks:
            yield chunks

    def _chunks(self, work: WorkConfig) -> Iterator[list[WorkFile]]:
        query = "SELECT key, size, source FROM work ORDER BY place, key"
        pending: list[WorkFile] = []
        num_bytes = 0
        for key, size, source in self._connection.execute(query):
            full = len(pending) >= work.chunk_files or num_bytes + size > work.chunk_mb * _MB
            if pending and full:
                yield pending
                pending, num_bytes = [], 0
            pending.append(WorkFile(key, SourceFile(**json.loads(source))))
            num_bytes += size
        if pending:
            yield pending

    def listed(self) -> Iterator[tuple[str, str, int, bool]]:
        """Files (key, path, size, whether new) of this run's sources, by key."""
        query = "SELECT key, path, size, is_new FROM listed ORDER BY key"
        for key, path, size, is_new in self._connection.execute(query):
            yield key, path, size, bool(is_new)

    def path_and_size(self, key: str) -> tuple[str, int]:
        """Where a listed file lies, and its bytes."""
        row = self._one("SELECT path, size FROM listed WHERE key = ?", key)
        assert row is not None, f"{key} was not listed"
        return row[0], row[1]

    def has(self, key: str) -> bool:
        """Whether this run's sources hold a file of this key."""
        return self._one("SELECT 1 FROM listed WHERE key = ?", key) is not None

    def _one(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._connection.execute(query, values).fetchone()
        return row

    def _execute(self, query: str, *values: Any) -> None:
        self._connection.execute(query, values)


def file_key(root: str, source: SourceFile) -> str:
    """A file's key in a dataset: the name of its source folder, and its path below that.

    A file that is a source itself goes by the folder it lies in, so that naming it or its folder
    gives one key. The same folder at another place, or in another order, keeps its keys.
    """
    place = _absolute(root)
    levels = [level for level in place.replace("\\", "/").split("/") if level]
    if _absolute(source.path) == place:
        levels = levels[:-1]
    label = levels[-1] if levels else ""
    return printable(f"{label}/{source.name}" if label else source.name)


def _absolute(path: str) -> str:
    return path.rstrip("/") if "://" in path else os.path.abspath(os.path.expanduser(path))
