from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hymotion_ray.config.grid import Grid
from hymotion_ray.engine.identity import PromptIdentity, noise_seeds
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.work_chunks import MAX_TARGETS
from hymotion_ray.engine.worklist import Worklist, WorkPrompt, target_key
from hymotion_ray.formats.names import safe_stem

GRID = Grid(rows=4, frame_step=30, token_cells=(8, 16))
NPZ = ("npz",)


def prompt(number: int, **changes: object) -> WorkPrompt:
    base = WorkPrompt(
        prompt_id=f"id{number}",
        group="",
        text=f"text {number}",
        original_text=None,
        num_frames=60,
        num_steps=5,
        guidance_scale=2.0,
        num_tokens=5,
        warnings="",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def identity(asked: WorkPrompt, seed: int = 0, best_of: int = 1) -> bytes:
    own = PromptIdentity(
        folder_identity="f",
        text=asked.text,
        num_frames=asked.num_frames,
        num_steps=asked.num_steps,
        guidance_scale=asked.guidance_scale,
    )
    return own.of(noise_seeds(seed, best_of))


def key(asked: WorkPrompt, seed: int = 0) -> bytes:
    return target_key(asked.group, safe_stem(asked.prompt_id, seed))


def add(worklist: Worklist, asked: WorkPrompt, seeds: tuple[int, ...] = (0,), formats=NPZ):
    worklist.add_prompt(asked)
    return [
        worklist.add_clip(key(asked, seed), identity(asked, seed), seed, formats) for seed in seeds
    ]


@pytest.fixture
def worklist(tmp_path: Path):
    with Worklist(tmp_path / "w.sqlite") as opened:
        yield opened


def chunks(worklist: Worklist, grid: Grid = GRID) -> list[Chunk]:
    return list(worklist.chunks(grid, train_frames=360))


def stems(found: list[Chunk]) -> list[str]:
    return [t["stem"] for c in found for targets in c.column("targets") for t in targets]


def test_every_clip_leaves_once_in_chunks_of_one_cell(worklist: Worklist) -> None:
    for n in range(23):
        add(worklist, prompt(n, num_frames=40 if n % 3 else 80), (0, 7))
    worklist.seal()
    out = chunks(worklist)
    assert Counter(stems(out)) == Counter(f"id{n}_s{s}" for n in range(23) for s in (0, 7))
    for chunk in out:
        assert len({-(-f // 30) for f in chunk.column("num_frames")}) == 1
        assert sum(len(s) for s in chunk.column("noise_seeds")) <= GRID.rows


def test_long_clips_come_first_and_seeds_of_a_prompt_side_by_side(worklist: Worklist) -> None:
    for n, frames in enumerate((30, 90, 60)):
        add(worklist, prompt(n, num_frames=frames), (0, 1))
    worklist.seal()
    assert stems(chunks(worklist)) == ["id1_s0", "id1_s1", "id2_s0", "id2_s1", "id0_s0", "id0_s1"]


def test_settings_do_not_mix_in_a_chunk(worklist: Worklist) -> None:
    for n in range(8):
        add(worklist, prompt(n, num_steps=5 + n % 2, guidance_scale=1.0 + n % 3))
    worklist.seal()
    for chunk in chunks(worklist):
        assert len(set(zip(*map(chunk.column, ("num_steps", "guidance_scale")), strict=True))) == 1


def test_equal_identities_are_computed_once_for_all_who_asked(worklist: Worklist) -> None:
    for n in range(5):
        add(worklist, prompt(0, prompt_id=f"p{n}"))
    worklist.seal()
    (chunk,) = chunks(worklist)
    assert worklist.num_work == chunk.items.num_rows == 1
    assert [t["id"] for t in chunk.column("targets")[0]] == [f"p{n}" for n in range(5)]


def test_very_many_targets_are_split(worklist: Worklist) -> None:
    num_targets = 2 * MAX_TARGETS + 1
    for n in range(num_targets):
        add(worklist, prompt(0, prompt_id=f"p{n}"))
    worklist.seal()
    out = chunks(worklist)
    assert sorted(stems(out)) == sorted(f"p{n}_s0" for n in range(num_targets))
    assert all(len(targets) <= MAX_TARGETS for c in out for targets in c.column("targets"))


def test_candidates_count_as_rows(tmp_path: Path) -> None:
    with Worklist(tmp_path / "w", best_of=2) as worklist:
        for n in range(4):
            add(worklist, prompt(n), (n,))
        worklist.seal()
        assert worklist.histogram() == [(60, 5, 8)]
        assert [c.column("noise_seeds") for c in chunks(worklist)] == [
            [[0, 1], [2, 3]],
            [[4, 5], [6, 7]],
        ]


def test_more_candidates_than_rows_still_leave(tmp_path: Path) -> None:
    with Worklist(tmp_path / "w", best_of=9) as worklist:
        add(worklist, prompt(0))
        worklist.seal()
        (chunk,) = chunks(worklist)
        assert chunk.column("noise_seeds") == [list(range(9))]


def test_the_same_clips_give_the_same_chunk_keys(tmp_path: Path) -> None:
    keys = []
    for name in ("a", "b"):
        with Worklist(tmp_path / name) as worklist:
            for n in range(6):
                add(worklist, prompt(n))
            worklist.seal()
            keys.append([c.key for c in chunks(worklist)])
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 2


def test_done_clips_are_left_out(worklist: Worklist) -> None:
    worklist.add_known([(key(prompt(0)), identity(prompt(0)), "npz,bvh", 1)])
    assert worklist.settle_known() == 0
    assert add(worklist, prompt(0), formats=("npz", "bvh")) == ["done"]
    assert add(worklist, prompt(1)) == ["new"]
    worklist.seal()
    assert worklist.num_work == 1
    assert worklist.num_expected == 2


def test_a_missing_format_is_an_export_not_new_work(worklist: Worklist) -> None:
    worklist.add_known([(key(prompt(0)), identity(prompt(0)), "npz", 1)])
    worklist.settle_known()
    assert add(worklist, prompt(0), formats=("npz", "glb")) == ["export"]
    worklist.seal()
    assert worklist.missing_formats(key(prompt(0))) == ["glb"]
    assert (worklist.num_exports, worklist.num_work) == (1, 0)


def test_a_name_that_holds_another_clip_is_taken(worklist: Worklist) -> None:
    worklist.add_known([(key(prompt(0)), b"another", "npz", 1)])
    worklist.settle_known()
    assert add(worklist, prompt(0)) == ["taken"]


def test_names_that_differ_in_case_are_one_file(worklist: Worklist) -> None:
    worklist.add_known([(target_key("", "WALK_s0"), identity(prompt(0)), "npz", 1)])
    worklist.settle_known()
    assert add(worklist, prompt(0, prompt_id="walk")) == ["done"]


def test_a_failed_clip_comes_back_with_its_next_attempt(worklist: Worklist) -> None:
    worklist.add_known([(key(prompt(0)), identity(prompt(0)), None, 2)])
    worklist.settle_known()
    add(worklist, prompt(0))
    worklist.seal()
    (chunk,) = chunks(worklist)
    assert chunk.column("targets")[0][0]["attempt"] == 3
    assert worklist.num_expected == 1


def test_the_last_word_on_a_clip_counts(worklist: Worklist) -> None:
    first, second = (key(prompt(n)) for n in range(2))
    worklist.add_known([(first, b"i", None, 1), (first, b"i", "npz", 2), (first, b"i", None, 3)])
    worklist.add_known([(second, b"j", None, 1), (second, b"j", None, 2)])
    assert worklist.settle_known() == 3
    assert worklist.add_clip(first, b"i", 0, NPZ) == "done"
    add(worklist, prompt(1))
    worklist.seal()
    assert chunks(worklist)[0].column("targets")[0][0]["attempt"] == 3


def test_suspects_leave_last_and_alone(worklist: Worklist) -> None:
    for n in range(6):
        add(worklist, prompt(n))
    worklist.seal(suspects=[identity(prompt(2)), identity(prompt(4)), b"unknown"])
    assert stems(chunks(worklist)) == [f"id{n}_s0" for n in (0, 1, 3, 5)]
    last = list(worklist.suspects())
    assert [c.items.num_rows for c in last] == [1, 1]
    assert stems(last) == ["id2_s0", "id4_s0"]


def test_the_histogram_counts_work_not_copies(worklist: Worklist) -> None:
    add(worklist, prompt(0), (0, 1))
    add(worklist, prompt(1))
    add(worklist, prompt(1, prompt_id="again"))
    add(worklist, prompt(2, num_frames=90))
    worklist.seal()
    assert worklist.histogram() == [(60, 5, 3), (90, 5, 1)]


def test_more_clips_than_the_buffer_holds_all_come(tmp_path: Path) -> None:
    with Worklist(tmp_path / "w") as worklist:
        for n in range(300):
            add(worklist, prompt(n), tuple(range(40)))
        worklist.seal()
        assert worklist.num_work == 12_000
        assert len(set(stems(chunks(worklist, replace(GRID, rows=64))))) == 12_000


def test_identities_tell_every_field_apart() -> None:
    base = prompt(0)
    others = [
        replace(base, text="text 0 "),
        replace(base, num_frames=61),
        replace(base, num_steps=6),
        replace(base, guidance_scale=2.5),
    ]
    found = {identity(p) for p in (base, *others)} | {identity(base, 1), identity(base, 0, 2)}
    assert len(found) == 7
    assert identity(base) == identity(replace(base, prompt_id="x", group="g", guidance_scale=2))
