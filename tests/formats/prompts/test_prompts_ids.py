"""Ids: settled by the names they would write, before any work."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymotion_ray.errors import ConfigError
from hymotion_ray.formats.names import fold, safe_group, safe_stem
from hymotion_ray.formats.prompts import PromptRow, Reject, settle_ids


def _row(prompt_id: str, line: int = 1, group: str = "", explicit: bool = True) -> PromptRow:
    return PromptRow(
        prompt_id=prompt_id,
        text="walk",
        num_frames=60,
        seeds=None,
        guidance_scale=None,
        num_steps=None,
        group=group,
        file="p.txt",
        line=line,
        explicit_id=explicit,
        requested_frames=60,
        warnings=(),
    )


def _settled(rows, policy="error"):
    return [
        row.prompt_id if isinstance(row, PromptRow) else row.code
        for row in settle_ids(rows, {}, policy)
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [("7", "7"), ("Walk", "walk"), ("é", "e\u0301"), ("STRASSE", "straße"), ("Éa", "éA")],
)
def test_names_that_some_file_system_takes_for_one(first, second):
    same = fold(safe_stem(first, 0)) == fold(safe_stem(second, 0))
    outcome = _settled([_row(first, 1), _row(second, 2)])
    # Either such a file system takes the names for one and the second is rejected, or they differ.
    assert outcome == ([first, "duplicate_id"] if same else [first, second])
    if first.isascii() and second.isascii():
        assert same


def test_policies_for_explicit_ids():
    rows = [_row("a", 1), _row("a", 2), _row("b", 3), _row("a", 4)]
    assert _settled(rows) == ["a", "duplicate_id", "b", "duplicate_id"]
    assert _settled(rows, "skip") == ["a", "duplicate_skipped", "b", "duplicate_skipped"]
    assert _settled(rows, "suffix") == ["a", "a-2", "b", "a-3"]
    with pytest.raises(ConfigError, match="error, suffix or skip"):
        _settled(rows, "overwrite")


def test_the_first_place_is_named():
    reject = list(settle_ids([_row("a", 3), _row("A", 9)], {}))[1]
    assert isinstance(reject, Reject)
    assert "p.txt:3" in reject.message
    assert (reject.line, reject.prompt_id) == (9, "A")


def test_derived_ids_move_aside_and_keep_their_warning():
    rows = [_row("p-1-2", 1), _row("p-1", 2, explicit=False), _row("p-1", 3, explicit=False)]
    settled = list(settle_ids(rows, {}))
    assert [row.prompt_id for row in settled] == ["p-1-2", "p-1", "p-1-3"]
    assert settled[2].warnings == ("id_suffixed",)


def test_groups_are_folders_of_their_own():
    rows = [_row("a", 1, "g"), _row("a", 2, "h"), _row("a", 3), _row("a", 4, "G")]
    assert _settled(rows) == ["a", "a", "a", "duplicate_id"]


def test_rejects_pass_unchanged():
    reject = Reject("p.txt", 1, "bad_row", "m", None, "")
    assert list(settle_ids([reject], {})) == [reject]


def test_many_equal_ids_cost_one_look_up_each():
    class Counting(dict):
        num_gets = 0

        def get(self, key, default=None):
            Counting.num_gets += 1
            return super().get(key, default)

    rows = [_row("a", n, explicit=False) for n in range(1000)]
    settled = list(settle_ids(rows, Counting()))
    assert len({row.prompt_id for row in settled}) == 1000
    assert Counting.num_gets < 4000


def test_a_store_on_disk_serves_as_well(tmp_path):
    class Table:
        def __init__(self):
            self.db = sqlite3.connect(tmp_path / "seen.db")
            self.db.execute("CREATE TABLE seen (k TEXT PRIMARY KEY, v TEXT)")

        def get(self, key):
            found = self.db.execute("SELECT v FROM seen WHERE k = ?", (key,)).fetchone()
            return found and found[0]

        def __setitem__(self, key, value):
            self.db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?)", (key, value))

    rows = [_row("a", 1), _row("a", 2), _row("走", 3), _row("a", 4, explicit=False)]
    on_disk = list(settle_ids(rows, Table()))
    assert on_disk == list(settle_ids(rows, {}))


@given(
    st.lists(
        st.tuples(st.text("aAéÉ-12/ ", max_size=4), st.sampled_from(["", "g", "G"]), st.booleans()),
        max_size=20,
    ),
    st.sampled_from(["error", "suffix", "skip"]),
)
def test_no_two_settled_rows_share_a_name(rows, policy):
    prompts = [_row(i or "x", n, g, explicit) for n, (i, g, explicit) in enumerate(rows)]
    settled = list(settle_ids(prompts, {}, policy))
    assert len(settled) == len(prompts)
    kept = [row for row in settled if isinstance(row, PromptRow)]
    names = [fold(f"{safe_group(row.group)}/{safe_stem(row.prompt_id, 5)}") for row in kept]
    assert len(set(names)) == len(names)
    assert all(row.line == index for index, row in enumerate(settled))
