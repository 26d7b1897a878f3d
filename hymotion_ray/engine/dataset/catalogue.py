"""Stage: all clips of a round -> those that stay, their groups and splits, and the shards' rows.

It knows every clip of the dataset by a few words each, in a temporary SQLite file: what is needed
to find duplicates and mirror images wherever they lie, and to cut shards of even size. Everything
is decided in the order of names, so that no order of work shows in the result. Ray-free.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hymotion_ray.config.ingest import ShardConfig, SplitConfig
from hymotion_ray.engine.dataset.items import Rejected
from hymotion_ray.engine.identity import digest
from hymotion_ray.formats.shards import FOLDER, SPLITS

_TABLES = """
CREATE TABLE clip (
    clip_id TEXT PRIMARY KEY, seq INTEGER, chunk TEXT, data INTEGER, row INTEGER, file TEXT,
    grp TEXT, frames INTEGER, likeness TEXT, mirrored TEXT, words TEXT, is_new INTEGER,
    split TEXT, shard TEXT
) WITHOUT ROWID;
CREATE INDEX by_likeness ON clip (likeness);
CREATE INDEX by_mirrored ON clip (mirrored);
CREATE TABLE grp (name TEXT PRIMARY KEY, parent TEXT, is_fixed INTEGER) WITHOUT ROWID;
CREATE TABLE reject (seq INTEGER PRIMARY KEY, file TEXT, name TEXT, code TEXT, is_motion INTEGER,
    words TEXT, is_new INTEGER);
CREATE INDEX by_file ON clip (file);
CREATE INDEX reject_by_file ON reject (file);
"""
_BYTES_A_FRAME = 4 * (3 + 22 * 6)
_PACKED = 0.73
"""Size of a shard's motion over its raw floats, measured on CMU and DeepMimic clips."""


@dataclass(frozen=True)
class ShardPlan:
    """One shard to be written: entries (chunk, data, row, split group) in order."""

    name: str
    split: str
    entries: tuple[tuple[str, int, int, str], ...]

    def to_json(self) -> str:
        """As text that travels to a task."""
        return json.dumps([self.name, self.split, self.entries])

    @classmethod
    def from_json(cls, text: str) -> ShardPlan:
        """What `to_json` made."""
        name, split, entries = json.loads(text)
        return cls(name, split, tuple(tuple(entry) for entry in entries))


class Catalogue:
    """Clips and rejects of a dataset. Use as a context manager; the file is the caller's."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-65536"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(_TABLES)
        self._connection.execute("BEGIN")
        self._seq = 0

    def __enter__(self) -> Catalogue:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add_earlier_clips(self, rows: Iterable[dict[str, Any]]) -> None:
        """Clips of finished rounds: clip_id, file, split_group, num_frames, likeness, mirrored."""
        for row in rows:
            self._insert_clip(row, "", is_new=False)
            query = "INSERT OR IGNORE INTO grp VALUES (?, ?, 1)"
            self._execute(query, row["split_group"], row["split_group"])

    def add_earlier_rejects(self, rows: Iterable[dict[str, Any]]) -> None:
        """Rejects of finished rounds, by file, name, code, is_motion."""
        for row in rows:
            self._insert_reject(row, is_new=False)

    def add_chunk(self, chunk: str, rows: Iterable[dict[str, Any]]) -> None:
        """A chunk's index; chunks come in the round's order."""
        for row in rows:
            if row["reject"] is not None:
                self._insert_reject(row["reject"], is_new=True)
                continue
            clip = row["clip"]
            self._execute("INSERT OR IGNORE INTO grp VALUES (?, ?, 0)", *[clip["split_group"]] * 2)
            if not self._insert_clip(clip, chunk, is_new=True):
                self.add_reject(_again(clip, "id_taken", f"the name {clip['clip_id']!r} is taken"))

    def add_reject(self, reject: Rejected) -> None:
        """One more reject of this round."""
        fields = {
            name: getattr(reject, name)
            for name in (*("file", "name", "code", "message", "value", "limit"), "num_frames")
        }
        codes = ",".join(reject.all_codes or (reject.code,))
        self._insert_reject(
            fields | {"all_codes": codes, "is_motion": reject.is_motion}, is_new=True
        )

    def drop_duplicates(self) -> int:
        """Turn copies of kept clips into rejects, and give mirror images the group of what they
        mirror; the number of copies.

        The clip that stays is the one of an earlier round, else the first by name.
        """
        num_dropped = 0
        for clip_id, _ in self._new_clips():
            clip = self._clip(clip_id)
            twin = self._match("likeness", clip)
            if twin is not None:
                self._join_groups(clip["grp"], twin["grp"])
                message = f"the same motion as {twin['clip_id']}"
                self.add_reject(_again(json.loads(clip["words"]), "duplicate", message))
                self._execute("UPDATE clip SET is_new = -1 WHERE clip_id = ?", clip_id)
                num_dropped += 1
                continue
            image = self._match("mirrored", clip)
            if image is not None:
                self._join_groups(clip["grp"], image["grp"])
        return num_dropped

    def assign(self, splits: SplitConfig, shards: ShardConfig) -> Iterator[ShardPlan]:
        """Give every new clip its split and shard; the shards, split by split."""
        for clip_id, group in self._new_clips():
            root = self._root(group)
            self._execute(
                "UPDATE clip SET split = ?, grp = ? WHERE clip_id = ?",
                *(split_of(root, splits), root, clip_id),
            )
        for split in SPLITS:
            yield from self._cut(split, shards.target_mb * 1e6)

    def _cut(self, split: str, target: float) -> Iterator[ShardPlan]:
        where = "WHERE is_new = 1 AND split = ?"
        total = self._one(f"SELECT total(frames) FROM clip {where}", split)[0]
        size = total * _BYTES_A_FRAME * _PACKED
        if not total:
            return
        # Shards of even size: no crumb at the end.
        share = total / max(1, round(size / target))
        # `shard` is written while this is read, which SQLite allows for columns not asked for.
        query = f"SELECT clip_id, chunk, data, row, grp, frames FROM clip {where} ORDER BY seq"
        pending: list[tuple[str, int, int, str]] = []
        names: list[str] = []
        frames = 0.0
        for clip_id, chunk, data, row, group, length in self._connection.execute(query, (split,)):
            pending.append((chunk, data, row, group))
            names.append(clip_id)
            frames += length
            if frames >= share * (1 - 1e-9):
                yield self._plan(split, names, pending)
                pending, names, frames = [], [], frames - share
        if pending:
            yield self._plan(split, names, pending)

    def _plan(self, split: str, names: list[str], entries: list[Any]) -> ShardPlan:
        name = f"{FOLDER}/{split}-{digest({'split': split, 'clips': names})[:16]}.parquet"
        self._connection.executemany(
            "UPDATE clip SET shard = ? WHERE clip_id = ?", [(name, clip_id) for clip_id in names]
        )
        return ShardPlan(name, split, tuple(entries))

    def new_clips(self) -> Iterator[dict[str, Any]]:
        """Clips of this round with their split and shard, by name."""
        query = "SELECT words, grp, split, shard FROM clip WHERE is_new = 1 ORDER BY clip_id"
        for words, group, split, shard in self._connection.execute(query):
            yield json.loads(words) | {"split_group": group, "split": split, "shard": shard}

    def new_rejects(self) -> Iterator[dict[str, Any]]:
        """Rejects of this round, by name."""
        query = "SELECT words FROM reject WHERE is_new = 1 ORDER BY name, code, words"
        for (words,) in self._connection.execute(query):
            yield json.loads(words)

    def num_accepted(self, file: str) -> int:
        """Clips of one file that stay, in all rounds."""
        return int(self._one("SELECT count(*) FROM clip WHERE file = ? AND is_new >= 0", file)[0])

    def reasons(self, file: str) -> Iterator[tuple[str, bool]]:
        """Codes of a file's rejects in all rounds, and whether each is a motion."""
        query = "SELECT code, is_motion FROM reject WHERE file = ?"
        for code, is_motion in self._connection.execute(query, (file,)):
            yield code, bool(is_motion)

    def settle(self) -> None:
        """The round is finished: its clips and rejects are earlier ones now."""
        self._execute("DELETE FROM clip WHERE is_new = -1")
        self._execute("UPDATE clip SET is_new = 0, words = ''")
        self._execute("UPDATE reject SET is_new = 0, words = ''")
        self._execute("UPDATE grp SET is_fixed = 1")

    def _new_clips(self) -> Iterator[tuple[str, str]]:
        """Clips (id, group) of this round by name, page by page, as callers change the table."""
        query = (
            "SELECT clip_id, grp FROM clip WHERE is_new = 1 AND clip_id > ? ORDER BY clip_id"
            " LIMIT 4096"
        )
        last = ""
        while page := self._connection.execute(query, (last,)).fetchall():
            yield from page
            last = page[-1][0]

    def _insert_clip(self, clip: dict[str, Any], chunk: str, is_new: bool) -> bool:
        self._seq += 1
        cursor = self._connection.execute(
            "INSERT OR IGNORE INTO clip VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
            (
                *(clip["clip_id"], self._seq, chunk, clip.get("data"), clip.get("row")),
                *(clip["file"], clip["split_group"], clip["num_frames"]),
                *(clip["likeness"], clip["mirrored"]),
                json.dumps(clip, ensure_ascii=False) if is_new else "",
                int(is_new),
            ),
        )
        return cursor.rowcount == 1

    def _insert_reject(self, reject: dict[str, Any], is_new: bool) -> None:
        self._execute(
            "INSERT INTO reject VALUES (NULL, ?, ?, ?, ?, ?, ?)",
            *(reject["file"], reject["name"], reject["code"], int(reject["is_motion"])),
            json.dumps(reject, ensure_ascii=False) if is_new else "",
            int(is_new),
        )

    def _clip(self, clip_id: str) -> dict[str, Any]:
        names = ("clip_id", "grp", "likeness", "mirrored", "words")
        row = self._one(f"SELECT {', '.join(names)} FROM clip WHERE clip_id = ?", clip_id)
        return dict(zip(names, row, strict=True))

    def _match(self, column: str, clip: dict[str, Any]) -> dict[str, Any] | None:
        """The kept clip before this one whose `column` is this clip's likeness."""
        query = (
            f"SELECT clip_id, grp FROM clip WHERE {column} = ? AND clip_id != ?"
            " AND (is_new = 0 OR (is_new = 1 AND clip_id < ?)) ORDER BY is_new, clip_id LIMIT 1"
        )
        values = (clip["likeness"], clip["clip_id"], clip["clip_id"])
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else {"clip_id": row[0], "grp": row[1]}

    def _root(self, group: str) -> str:
        while (parent := self._one("SELECT parent FROM grp WHERE name = ?", group)[0]) != group:
            group = parent
        return group

    def _join_groups(self, one: str, other: str) -> None:
        """Make two groups one. Groups of finished rounds keep their names, as their splits are
        settled; of others the first by name gives its own.
        """
        roots = sorted({self._root(one), self._root(other)}, key=self._standing)
        if len(roots) == 2:
            fixed = self._one("SELECT is_fixed FROM grp WHERE name = ?", roots[1])[0]
            if not fixed:
                self._execute("UPDATE grp SET parent = ? WHERE name = ?", *roots)

    def _standing(self, root: str) -> tuple[bool, str]:
        return not self._one("SELECT is_fixed FROM grp WHERE name = ?", root)[0], root

    def _one(self, query: str, *values: Any) -> Any:
        return self._connection.execute(query, values).fetchone()

    def _execute(self, query: str, *values: Any) -> None:
        self._connection.execute(query, values)


def split_of(group: str, splits: SplitConfig) -> str:
    """The split of a group by the hash of its name: no other group, and no order, has a say."""
    place = int.from_bytes(hashlib.sha256(f"split/{group}".encode()).digest()[:8]) / 2**64
    if place < splits.test:
        return "test"
    return "val" if place < splits.test + splits.val else "train"


def _again(clip: dict[str, Any], code: str, message: str) -> Rejected:
    return Rejected(
        file=clip["file"],
        name=clip["clip_id"],
        code=code,
        message=message,
        num_frames=clip["num_frames"],
    )
