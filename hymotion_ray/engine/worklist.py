"""What a render job has to do, settled before any GPU work. Ray-free.

The list lies in a temporary SQLite file, so that a job of millions of items needs no more memory
than one of a hundred. Rows are appended and sorted afterwards, never put at random places: that
keeps the pace at tens of millions. Clips of one identity are one piece of work with several
targets; clips that the manifest has as done are left out; the rest leaves in chunks of one grid
cell and one setting.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hymotion_ray.config.grid import Grid
from hymotion_ray.engine.identity import noise_seeds
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.work_chunks import MAX_TARGETS, Target, WorkRow, make_chunk
from hymotion_ray.formats.names import fold, safe_stem

_BUFFER_ROWS = 4096
_CACHE_KIB = 16384

_TABLES = """
CREATE TABLE known (key BLOB, identity BLOB, formats TEXT, attempt INTEGER);
CREATE TABLE done (key BLOB PRIMARY KEY, identity BLOB, formats TEXT) WITHOUT ROWID;
CREATE TABLE failed (key BLOB PRIMARY KEY, attempt INTEGER) WITHOUT ROWID;
CREATE TABLE prompts (
    number INTEGER PRIMARY KEY, id TEXT, grp TEXT, text TEXT, original_text TEXT,
    num_frames INTEGER, num_steps INTEGER, guidance_scale REAL, num_tokens INTEGER, warnings TEXT
);
CREATE TABLE clips (
    seq INTEGER PRIMARY KEY, prompt INTEGER, seed INTEGER, identity BLOB, attempt INTEGER
);
CREATE TABLE copies (seq INTEGER PRIMARY KEY, first INTEGER);
CREATE TABLE ordered (place INTEGER PRIMARY KEY, seq INTEGER);
CREATE TABLE exports (key BLOB PRIMARY KEY, formats TEXT) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True)
class WorkPrompt:
    """One prompt as it is put on the list."""

    prompt_id: str
    group: str
    """Sub-folder, safe."""
    text: str
    original_text: str | None
    num_frames: int
    num_steps: int
    guidance_scale: float
    num_tokens: int
    warnings: str


def target_key(group: str, stem: str) -> bytes:
    """The key of an output file, the same for names that some file system takes for one."""
    return hashlib.blake2b(
        f"{fold(group)}/{fold(stem)}".encode("utf-8", "surrogatepass"), digest_size=16
    ).digest()


class Texts:
    """A mapping of texts that lies in the list's file: names taken so far, a rewriter's answers."""

    def __init__(self, connection: sqlite3.Connection, table: str) -> None:
        self._connection = connection
        connection.execute(f"CREATE TABLE {table} (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
        self._select = f"SELECT value FROM {table} WHERE key = ?"
        self._insert = f"INSERT OR REPLACE INTO {table} VALUES (?, ?)"

    def get(self, key: str, default: str | None = None) -> str | None:
        """The value of a key, or `default`."""
        row = self._connection.execute(self._select, (key,)).fetchone()
        return default if row is None else str(row[0])

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: str) -> str:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        self._connection.execute(self._insert, (key, value))


class Worklist:
    """The list of one job. Use as a context manager; the file goes with its folder.

    First what the manifest has (`add_known`, `settle_known`), then what is asked (`add_prompt`,
    `add_clip`), then `seal`; after that the questions and the chunks.
    """

    def __init__(self, path: Path, best_of: int = 1) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in (
            "journal_mode=OFF",
            "synchronous=OFF",
            "locking_mode=EXCLUSIVE",
            f"cache_size=-{_CACHE_KIB}",
            "temp_store=FILE",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(_TABLES)
        self._connection.execute("BEGIN")
        self.seen = Texts(self._connection, "seen")
        self.answers = Texts(self._connection, "answers")
        self._best_of = best_of
        self._prompts: list[tuple[Any, ...]] = []
        self._clips: list[tuple[Any, ...]] = []
        self._num_prompts = self._num_clips = 0
        self._num_done = self._num_failed = 0
        self._suspects: set[bytes] = set()

    def __enter__(self) -> Worklist:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    # --- what the manifest has ------------------------------------------------------------------

    def add_known(self, rows: Iterable[tuple[bytes, bytes | None, str | None, int]]) -> None:
        """Rows (key, identity, formats, attempt) of the manifest; formats None: it failed."""
        self._connection.executemany("INSERT INTO known VALUES (?, ?, ?, ?)", rows)

    def settle_known(self) -> int:
        """Take in what `add_known` brought; returns how many of its rows are not their item's last.

        An item's latest word counts: done over failed, then the higher attempt.
        """
        run = self._connection.execute
        total = run("SELECT count(*) FROM known").fetchone()[0]
        run(
            "INSERT OR IGNORE INTO done SELECT key, identity, formats FROM known"
            " WHERE formats IS NOT NULL ORDER BY key, attempt DESC"
        )
        run(
            "INSERT OR IGNORE INTO failed SELECT key, attempt FROM known WHERE formats IS NULL"
            " AND key NOT IN (SELECT key FROM done) ORDER BY key, attempt DESC"
        )
        run("DROP TABLE known")
        self._num_done = run("SELECT count(*) FROM done").fetchone()[0]
        self._num_failed = run("SELECT count(*) FROM failed").fetchone()[0]
        return int(total - self._num_done - self._num_failed)

    # --- what is asked --------------------------------------------------------------------------

    def add_prompt(self, prompt: WorkPrompt) -> None:
        """Put a prompt on the list; the clips that follow are its."""
        self._num_prompts += 1
        self._prompts.append(
            (
                self._num_prompts,
                prompt.prompt_id,
                prompt.group,
                prompt.text,
                prompt.original_text,
                prompt.num_frames,
                prompt.num_steps,
                prompt.guidance_scale,
                prompt.num_tokens,
                prompt.warnings,
            )
        )

    def add_clip(self, key: bytes, identity: bytes, seed: int, formats: Sequence[str]) -> str:
        """Put a clip of the latest prompt on the list and say what it is.

        `new`: to be computed; `done`: finished, with all of `formats`; `export`: finished, some
        formats are missing; `taken`: its file belongs to another clip in this folder.
        """
        attempt = 1
        if self._num_done:
            query = "SELECT identity, formats FROM done WHERE key = ?"
            found = self._connection.execute(query, (key,)).fetchone()
            if found is not None:
                return self._add_found(key, identity, formats, *found)
        if self._num_failed:
            query = "SELECT attempt FROM failed WHERE key = ?"
            failed = self._connection.execute(query, (key,)).fetchone()
            attempt = 1 if failed is None else failed[0] + 1
        self._num_clips += 1
        self._clips.append((self._num_clips, self._num_prompts, seed, identity, attempt))
        if len(self._clips) >= _BUFFER_ROWS:
            self._flush()
        return "new"

    def _add_found(
        self, key: bytes, identity: bytes, formats: Sequence[str], found: bytes, have: str
    ) -> str:
        if found != identity:
            return "taken"
        held = have.split(",")
        missing = [name for name in formats if name not in held]
        if not missing:
            return "done"
        row = (key, ",".join(missing))
        self._connection.execute("INSERT OR REPLACE INTO exports VALUES (?, ?)", row)
        return "export"

    def _flush(self) -> None:
        self._connection.executemany(
            "INSERT INTO prompts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self._prompts
        )
        self._connection.executemany("INSERT INTO clips VALUES (?, ?, ?, ?, ?)", self._clips)
        self._prompts.clear()
        self._clips.clear()

    def seal(self, suspects: Iterable[bytes] = ()) -> None:
        """End the asking: find the clips of one identity. `suspects` will leave last, alone."""
        self._flush()
        self._suspects = set(suspects)
        run = self._connection.execute
        run("CREATE INDEX by_identity ON clips (identity)")
        run(
            "INSERT INTO copies SELECT c.seq, f.first FROM ("
            " SELECT identity, min(seq) AS first FROM clips GROUP BY identity HAVING count(*) > 1"
            ") f JOIN clips c ON c.identity = f.identity WHERE c.seq != f.first ORDER BY c.seq"
        )
        run("CREATE INDEX by_first ON copies (first)")
        run("DROP INDEX by_identity")

    # --- what is to be done ---------------------------------------------------------------------

    @property
    def num_work(self) -> int:
        """Pieces of work: distinct identities to be computed. After `seal`."""
        copies = self._connection.execute("SELECT count(*) FROM copies").fetchone()[0]
        return int(self._num_clips - copies)

    @property
    def num_expected(self) -> int:
        """Items that the manifest has when all is done."""
        retried = self._connection.execute("SELECT count(*) FROM clips WHERE attempt > 1")
        return self._num_done + self._num_failed + self._num_clips - int(retried.fetchone()[0])

    def histogram(self) -> list[tuple[int, int, int]]:
        """(num_frames, num_tokens, rows) of the work, candidates counted, to choose a grid by."""
        query = (
            "SELECT num_frames, num_tokens, count(*) FROM clips JOIN prompts ON prompt = number"
            " WHERE seq NOT IN (SELECT seq FROM copies)"
            " GROUP BY num_frames, num_tokens ORDER BY num_frames, num_tokens"
        )
        found = self._connection.execute(query)
        return [(int(f), int(t), int(n) * self._best_of) for f, t, n in found]

    def chunks(self, grid: Grid, train_frames: int) -> Iterator[Chunk]:
        """The work in chunks of one cell and one setting, clips of one prompt side by side.

        Long clips come first, so that the end of a job on unlike machines is made of short ones.
        """
        self._order(grid, train_frames)
        pending: list[WorkRow] = []
        num_rows, kind = 0, None
        for row in self._rows():
            if bytes.fromhex(row.identity) in self._suspects:
                continue
            before, kind = kind, _kind(row, grid, train_frames)
            if pending and (kind != before or num_rows + len(row.noise_seeds) > grid.rows):
                yield make_chunk(pending)
                pending, num_rows = [], 0
            pending.append(row)
            num_rows += len(row.noise_seeds)
        if pending:
            yield make_chunk(pending)

    def suspects(self) -> Iterator[Chunk]:
        """The suspects among the work, an item a chunk. After `chunks` has begun."""
        if self._suspects:
            for row in self._rows():
                if bytes.fromhex(row.identity) in self._suspects:
                    yield make_chunk([row])

    def _order(self, grid: Grid, train_frames: int) -> None:
        """Sort the work by cell and setting, as a narrow table that is then read in order."""

        def cell(num_frames: int, num_tokens: int) -> int:
            found = grid.cell(num_frames, num_tokens, train_frames)
            return found.tokens - 1_000_000 * found.frames

        self._connection.create_function("cell", 2, cell, deterministic=True)
        self._connection.execute("DELETE FROM ordered")
        self._connection.execute(
            "INSERT INTO ordered (seq) SELECT seq FROM clips JOIN prompts ON prompt = number"
            " WHERE seq NOT IN (SELECT seq FROM copies)"
            " ORDER BY cell(num_frames, num_tokens), num_steps, guidance_scale, seq"
        )

    def _rows(self) -> Iterator[WorkRow]:
        query = (
            "SELECT c.seq, c.seed, c.identity, c.attempt, p.* FROM ordered o"
            " JOIN clips c ON c.seq = o.seq JOIN prompts p ON p.number = c.prompt ORDER BY o.place"
        )
        has_copies = self._connection.execute("SELECT count(*) FROM copies").fetchone()[0] > 0
        for row in self._connection.execute(query):
            seq, seed, identity, attempt, _, prompt_id, group, *fields = row
            own = Target(prompt_id, group, seed, safe_stem(prompt_id, seed), attempt)
            targets = [own, *self._copies(seq)] if has_copies else [own]
            for start in range(0, len(targets), MAX_TARGETS):
                yield WorkRow(
                    identity.hex(),
                    noise_seeds(seed, self._best_of),
                    targets[start : start + MAX_TARGETS],
                    *fields,
                )

    def _copies(self, first: int) -> Iterator[Target]:
        query = (
            "SELECT p.id, p.grp, c.seed, c.attempt FROM copies"
            " JOIN clips c ON c.seq = copies.seq JOIN prompts p ON p.number = c.prompt"
            " WHERE copies.first = ? ORDER BY c.seq"
        )
        for prompt_id, group, seed, attempt in self._connection.execute(query, (first,)):
            yield Target(prompt_id, group, seed, safe_stem(prompt_id, seed), attempt)

    @property
    def num_exports(self) -> int:
        """Finished clips that lack a format."""
        return int(self._connection.execute("SELECT count(*) FROM exports").fetchone()[0])

    def missing_formats(self, key: bytes) -> list[str]:
        """Formats that the finished clip of this key lacks."""
        query = "SELECT formats FROM exports WHERE key = ?"
        row = self._connection.execute(query, (key,)).fetchone()
        return [] if row is None else str(row[0]).split(",")


def _kind(row: WorkRow, grid: Grid, train_frames: int) -> tuple[Any, ...]:
    """What the clips of a chunk share."""
    cell = grid.cell(row.num_frames, row.num_tokens, train_frames)
    return cell, row.num_steps, row.guidance_scale
