"""One manifest row an item: drops rows that are not their item's last word. Ray-free.

Such rows come from items that failed in an earlier run and are done now, and in rare cases from a
chunk that was taken apart while a process believed dead still wrote it whole.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from hymotion_ray.engine import faults
from hymotion_ray.engine.manifest import part_names, read_batches, read_rows, rewrite_part
from hymotion_ray.engine.worklist import target_key
from hymotion_ray.formats.atomic import Store

_COLUMNS = ["group", "stem", "status", "attempt"]


def settle_rows(store: Store, scratch: Path) -> int:
    """Leave one row an item: done over failed, then the higher attempt; returns rows dropped.

    `scratch` is a file name to work in. A part is rewritten whole or not at all; when this is cut
    off, the next run does it again.
    """
    names = part_names(store)
    with sqlite3.connect(scratch, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute(
            "CREATE TABLE seen (key BLOB, is_done INT, attempt INT, part INT, row INT)"
        )
        connection.execute("BEGIN")
        for part, name in enumerate(names):
            connection.executemany(
                "INSERT INTO seen VALUES (?, ?, ?, ?, ?)", _rows(store, name, part)
            )
        losers = connection.execute(
            "SELECT part, row FROM (SELECT part, row, row_number() OVER"
            " (PARTITION BY key ORDER BY is_done DESC, attempt DESC, part, row) AS place FROM seen)"
            " WHERE place > 1 ORDER BY part, row"
        )
        dropped: dict[int, set[int]] = {}
        num_dropped = 0
        for part, row in losers:
            dropped.setdefault(part, set()).add(row)
            num_dropped += 1
    connection.close()
    scratch.unlink()
    for part, numbers in dropped.items():
        _drop(store, names[part], numbers)
    return num_dropped


def _rows(store: Store, name: str, part: int) -> Iterator[tuple[bytes, bool, int, int, int]]:
    number = 0
    for batch in read_batches(store, _COLUMNS, [name]):
        columns = [batch.column(c).to_pylist() for c in _COLUMNS]
        for group, stem, status, attempt in zip(*columns, strict=True):
            yield target_key(group, stem), status == "done", attempt or 0, part, number
            number += 1


def _drop(store: Store, name: str, rows: set[int]) -> None:
    kept = [row for n, row in enumerate(read_rows(store, name)) if n not in rows]
    if kept:
        rewrite_part(store, name, kept)
    else:
        store.remove(name)
    faults.reach("settled", name)
