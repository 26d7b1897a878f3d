from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hymotion_ray.config.grid import Grid
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.worklist import MAX_TARGETS, WorkItem, Worklist

GRID = Grid(rows=4, frame_step=30, token_cells=(8, 16))


def item(number: int, **changes: object) -> WorkItem:
    base = WorkItem(
        identity=f"{number:032d}",
        text=f"text {number}",
        num_frames=60,
        noise_seeds=(0,),
        num_steps=5,
        guidance_scale=2.0,
        num_tokens=5,
        prompt_id=f"id{number}",
        group="",
        seed=0,
        stem=f"id{number}_s0",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def worklist(tmp_path: Path):
    with Worklist(tmp_path / "w.sqlite") as opened:
        yield opened


def chunks(worklist: Worklist) -> list[Chunk]:
    return list(worklist.chunks(GRID, train_frames=360))


def test_every_item_leaves_once_in_chunks_of_one_cell(worklist: Worklist) -> None:
    for n in range(23):
        worklist.add(item(n, num_frames=40 if n % 3 else 80), ("npz",))
    out = chunks(worklist)
    names = Counter(t["stem"] for c in out for targets in c.column("targets") for t in targets)
    assert names == Counter(f"id{n}_s0" for n in range(23))
    for chunk in out:
        assert len({-(-f // 30) for f in chunk.column("num_frames")}) == 1
        assert sum(len(s) for s in chunk.column("noise_seeds")) <= GRID.rows


def test_settings_do_not_mix_in_a_chunk(worklist: Worklist) -> None:
    for n in range(8):
        worklist.add(item(n, num_steps=5 + n % 2), ("npz",))
    assert all(len(set(c.column("num_steps"))) == 1 for c in chunks(worklist))


def test_equal_identities_are_computed_once_for_all_who_asked(worklist: Worklist) -> None:
    for n in range(5):
        worklist.add(item(0, prompt_id=f"p{n}", stem=f"p{n}_s0"), ("npz",))
    (chunk,) = chunks(worklist)
    assert chunk.items.num_rows == 1
    assert [t["id"] for t in chunk.column("targets")[0]] == [f"p{n}" for n in range(5)]


def test_very_many_targets_are_split(worklist: Worklist) -> None:
    for n in range(2 * MAX_TARGETS + 1):
        worklist.add(item(0, prompt_id=f"p{n}", stem=f"p{n}_s0"), ("npz",))
    targets = [t["stem"] for c in chunks(worklist) for ts in c.column("targets") for t in ts]
    assert sorted(targets) == sorted(f"p{n}_s0" for n in range(2 * MAX_TARGETS + 1))
    assert all(len(ts) <= MAX_TARGETS for c in chunks_again(worklist) for ts in c.column("targets"))


def chunks_again(worklist: Worklist) -> list[Chunk]:
    worklist._connection.execute("DROP INDEX by_identity")
    return chunks(worklist)


def test_candidates_count_as_rows(worklist: Worklist) -> None:
    for n in range(4):
        worklist.add(item(n, noise_seeds=(2 * n, 2 * n + 1)), ("npz",))
    assert [c.items.num_rows for c in chunks(worklist)] == [2, 2]


def test_more_candidates_than_rows_still_leave(worklist: Worklist) -> None:
    worklist.add(item(0, noise_seeds=tuple(range(9))), ("npz",))
    (chunk,) = chunks(worklist)
    assert chunk.column("noise_seeds") == [list(range(9))]


def test_the_same_items_give_the_same_chunk_keys(tmp_path: Path) -> None:
    keys = []
    for name in ("a", "b"):
        with Worklist(tmp_path / name) as worklist:
            for n in range(6):
                worklist.add(item(n), ("npz",))
            keys.append([c.key for c in chunks(worklist)])
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 2


def test_done_items_are_left_out(worklist: Worklist) -> None:
    worklist.add_done([(item(0).key, item(0).identity, "npz,bvh")])
    assert worklist.add(item(0), ("npz", "bvh")) == "done"
    assert worklist.add(item(1), ("npz",)) == "new"
    assert worklist.num_work == 1


def test_a_missing_format_is_an_export_not_new_work(worklist: Worklist) -> None:
    worklist.add_done([(item(0).key, item(0).identity, "npz")])
    assert worklist.add(item(0), ("npz", "glb")) == "export"
    assert worklist.missing_formats(item(0).key) == ["glb"]
    assert worklist.num_work == 0


def test_a_name_that_holds_another_clip_is_taken(worklist: Worklist) -> None:
    worklist.add_done([(item(0).key, "another", "npz")])
    assert worklist.add(item(0), ("npz",)) == "taken"


def test_names_that_differ_in_case_are_one_file(worklist: Worklist) -> None:
    worklist.add_done([(item(0, stem="WALK_s0").key, item(0).identity, "npz")])
    assert worklist.add(item(0, stem="walk_s0"), ("npz",)) == "done"


def test_a_failed_item_comes_back_with_its_next_attempt(worklist: Worklist) -> None:
    worklist.add_failed([(item(0).key, 2)])
    worklist.add(item(0), ("npz",))
    (chunk,) = chunks(worklist)
    assert chunk.column("targets")[0][0]["attempt"] == 3


def test_histogram_counts_candidates(worklist: Worklist) -> None:
    worklist.add(item(0, noise_seeds=(0, 1)), ("npz",))
    worklist.add(item(1), ("npz",))
    worklist.add(item(2, num_frames=90), ("npz",))
    assert worklist.histogram() == [(60, 5, 3), (90, 5, 1)]
