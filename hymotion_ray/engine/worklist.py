"""What a render job has to do, settled before any GPU work. Ray-free.

The list lies in a temporary SQLite file, so that a job of millions of items needs no more memory
than one of a hundred. Items of one identity are one piece of work with several targets; items that
the manifest has as done are left out; the rest leaves in chunks of one grid cell and one setting.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hymotion_ray.config.grid import Grid
from hymotion_ray.engine.identity import digest
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.formats.names import fold

MAX_TARGETS = 64
"""Targets a piece of work carries; more are a second piece, so that chunks stay small."""

_TABLES = """
CREATE TABLE done (key TEXT PRIMARY KEY, identity TEXT, formats TEXT) WITHOUT ROWID;
CREATE TABLE failed (key TEXT PRIMARY KEY, attempt INTEGER) WITHOUT ROWID;
CREATE TABLE work (
    identity TEXT PRIMARY KEY, text TEXT, num_frames INTEGER, noise_seeds TEXT, num_steps INTEGER,
    guidance_scale REAL, num_tokens INTEGER, warnings TEXT, original_text TEXT, seq INTEGER
) WITHOUT ROWID;
CREATE TABLE targets (identity TEXT, id TEXT, grp TEXT, seed INTEGER, stem TEXT, attempt INTEGER);
CREATE TABLE exports (key TEXT PRIMARY KEY, formats TEXT) WITHOUT ROWID;
"""

TARGET = pa.struct(
    [
        ("id", pa.string()),
        ("group", pa.string()),
        ("seed", pa.int64()),
        ("stem", pa.string()),
        ("attempt", pa.int32()),
    ]
)
ITEMS = pa.schema(
    [
        ("identity", pa.string()),
        ("text", pa.string()),
        ("original_text", pa.string()),
        ("num_frames", pa.int32()),
        ("noise_seeds", pa.list_(pa.int64())),
        ("num_steps", pa.int32()),
        ("guidance_scale", pa.float64()),
        ("num_tokens", pa.int32()),
        ("warnings", pa.string()),
        ("targets", pa.list_(TARGET)),
        ("error_code", pa.string()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class WorkItem:
    """One clip asked for: what to compute, and the file it goes to."""

    identity: str
    text: str
    num_frames: int
    noise_seeds: tuple[int, ...]
    num_steps: int
    guidance_scale: float
    num_tokens: int
    prompt_id: str
    group: str
    seed: int
    stem: str
    warnings: str = ""
    original_text: str | None = None

    @property
    def key(self) -> str:
        """What two items must not share: the file name, without regard to case."""
        return target_key(self.group, self.stem)


def target_key(group: str, stem: str) -> str:
    """The key of an output file, the same for names that some file system takes for one."""
    return f"{fold(group)}/{fold(stem)}"


class Texts:
    """A mapping of texts that lies in the list's file: names taken so far, a rewriter's answers."""

    def __init__(self, connection: sqlite3.Connection, table: str) -> None:
        self._connection, self._table = connection, table
        connection.execute(f"CREATE TABLE {table} (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")

    def get(self, key: str, default: str | None = None) -> str | None:
        """The value of a key, or `default`."""
        query = f"SELECT value FROM {self._table} WHERE key = ?"
        row = self._connection.execute(query, (key,)).fetchone()
        return default if row is None else str(row[0])

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: str) -> str:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        query = f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?)"
        self._connection.execute(query, (key, value))


class Worklist:
    """The list of one job. Use as a context manager; the file goes with it."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-65536"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(_TABLES)
        self._connection.execute("BEGIN")
        self.seen = Texts(self._connection, "seen")
        self.answers = Texts(self._connection, "answers")
        self._seq = 0

    def __enter__(self) -> Worklist:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add_done(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Rows (key, identity, formats) that the manifest has as done."""
        self._connection.executemany("INSERT OR REPLACE INTO done VALUES (?, ?, ?)", rows)

    def add_failed(self, rows: Iterable[tuple[str, int]]) -> None:
        """Rows (key, attempt) that the manifest has as failed."""
        self._connection.executemany("INSERT OR REPLACE INTO failed VALUES (?, ?)", rows)

    def add(self, item: WorkItem, formats: tuple[str, ...]) -> str:
        """Put an item on the list and say what it is.

        `new`: to be computed; `done`: finished, with all of `formats`; `export`: finished, some
        formats are missing; `taken`: its file belongs to another clip in this folder.
        """
        query = "SELECT identity, formats FROM done WHERE key = ?"
        found = self._connection.execute(query, (item.key,)).fetchone()
        if found is not None:
            return self._add_found(item, formats, *found)
        self._seq += 1
        query = "SELECT attempt FROM failed WHERE key = ?"
        failed = self._connection.execute(query, (item.key,)).fetchone()
        self._connection.execute(
            "INSERT OR IGNORE INTO work VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                item.identity,
                item.text,
                item.num_frames,
                json.dumps(item.noise_seeds),
                item.num_steps,
                item.guidance_scale,
                item.num_tokens,
                item.warnings,
                item.original_text,
                self._seq,
            ),
        )
        self._connection.execute(
            "INSERT INTO targets VALUES (?, ?, ?, ?, ?, ?)",
            (
                item.identity,
                item.prompt_id,
                item.group,
                item.seed,
                item.stem,
                1 if failed is None else failed[0] + 1,
            ),
        )
        return "new"

    def _add_found(self, item: WorkItem, formats: tuple[str, ...], identity: str, have: str) -> str:
        if identity != item.identity:
            return "taken"
        missing = [f for f in formats if f not in have.split(",")]
        if not missing:
            return "done"
        row = (item.key, ",".join(missing))
        self._connection.execute("INSERT OR REPLACE INTO exports VALUES (?, ?)", row)
        return "export"

    @property
    def num_work(self) -> int:
        """Pieces of work: distinct identities still to be computed."""
        return int(self._connection.execute("SELECT count(*) FROM work").fetchone()[0])

    def histogram(self) -> list[tuple[int, int, int]]:
        """(num_frames, num_tokens, rows) of the work, candidates counted, to choose a grid by."""
        query = (
            "SELECT num_frames, num_tokens, sum(json_array_length(noise_seeds)) FROM work"
            " GROUP BY num_frames, num_tokens ORDER BY num_frames, num_tokens"
        )
        return [(int(f), int(t), int(n)) for f, t, n in self._connection.execute(query)]

    def chunks(self, grid: Grid, train_frames: int) -> Iterator[Chunk]:
        """The work in chunks of one cell and one setting, clips of one prompt side by side."""
        self._connection.execute("CREATE INDEX by_identity ON targets (identity)")
        self._connection.create_function(
            "cell", 2, lambda f, t: str(_sortable(grid, f, t, train_frames)), deterministic=True
        )
        query = (
            "SELECT identity, text, original_text, num_frames, noise_seeds, num_steps,"
            " guidance_scale, num_tokens, warnings, cell(num_frames, num_tokens) FROM work"
            " ORDER BY 10, num_steps, guidance_scale, seq"
        )
        pending: list[dict[str, Any]] = []
        current: tuple[Any, ...] | None = None
        num_rows = 0
        for row in self._connection.execute(query):
            setting = (row[9], row[5], row[6])
            seeds = json.loads(row[4])
            if pending and (setting != current or num_rows + len(seeds) > grid.rows):
                yield _chunk(pending)
                pending, num_rows = [], 0
            current = setting
            for targets in self._targets(row[0]):
                if pending and num_rows + len(seeds) > grid.rows:
                    yield _chunk(pending)
                    pending, num_rows = [], 0
                pending.append(_item(row, seeds, targets))
                num_rows += len(seeds)
        if pending:
            yield _chunk(pending)

    def _targets(self, identity: str) -> Iterator[list[dict[str, Any]]]:
        query = "SELECT id, grp, seed, stem, attempt FROM targets WHERE identity = ? ORDER BY rowid"
        cursor = self._connection.execute(query, (identity,))
        while rows := cursor.fetchmany(MAX_TARGETS):
            yield [
                dict(zip(("id", "group", "seed", "stem", "attempt"), r, strict=True)) for r in rows
            ]

    @property
    def num_exports(self) -> int:
        """Finished clips that lack a format."""
        return int(self._connection.execute("SELECT count(*) FROM exports").fetchone()[0])

    def missing_formats(self, key: str) -> list[str]:
        """Formats that the finished clip of this key lacks."""
        query = "SELECT formats FROM exports WHERE key = ?"
        row = self._connection.execute(query, (key,)).fetchone()
        return [] if row is None else str(row[0]).split(",")


def _sortable(grid: Grid, num_frames: int, num_tokens: int, train_frames: int) -> str:
    cell = grid.cell(num_frames, num_tokens, train_frames)
    return f"{cell.frames:06d}x{cell.tokens:06d}"


def _item(row: tuple[Any, ...], seeds: list[int], targets: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "identity": row[0],
        "text": row[1],
        "original_text": row[2],
        "num_frames": row[3],
        "noise_seeds": seeds,
        "num_steps": row[5],
        "guidance_scale": row[6],
        "num_tokens": row[7],
        "warnings": row[8],
        "targets": targets,
        "error_code": None,
        "error": None,
    }


def _chunk(items: list[dict[str, Any]]) -> Chunk:
    key = digest({"items": [[i["identity"], [t["stem"] for t in i["targets"]]] for i in items]})
    return Chunk(key=key, items=pa.Table.from_pylist(items, schema=ITEMS))
