"""Whole render jobs on a real Ray: what a user asks for is what lies in the folder."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import hymotion_ray as hm
from hymotion_ray.config.render import RenderConfig, ResourceConfig
from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.engine.render.job import JobReport, run_job
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import open_store

pytestmark = pytest.mark.ray

PROMPTS = """\
A person walks ahead.#40#walk
A person jumps up.#24#jump
A person waves.#36#wave
"""


def manifest(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    rows = [r for batch in read_batches(open_store(out)) for r in batch.to_pylist()]
    found = {(r["id"], r["seed"]): r for r in rows}
    assert len(found) == len(rows), "an item has more than one row"
    return found


def files(out: Path, suffix: str = ".npz") -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob(f"*{suffix}"))}


@pytest.fixture
def job(ray, random_model: Path, tmp_path: Path) -> Callable[..., JobReport]:
    def run(prompts: str = PROMPTS, name: str = "prompts.txt", **settings: Any) -> JobReport:
        path = tmp_path / name
        path.write_text(prompts, encoding="utf-8")
        config = RenderConfig(
            prompts=(str(path),),
            model=settings.pop("model", str(random_model)),
            out=str(settings.pop("out", tmp_path / "out")),
            resources=ResourceConfig(num_samplers=1),
            **settings,
        )
        return run_job(config, lambda line: None)

    return run


def test_a_prompt_file_becomes_motions_equal_to_the_pure_calls(
    job: Callable[..., JobReport], random_model: Path, tmp_path: Path
) -> None:
    report = job(num_seeds=2, formats=("npz", "bvh", "glb"))
    out = tmp_path / "out"
    assert (report.exit_code, report.done, report.failed) == (0, 6, 0)
    rows = manifest(out)
    assert set(rows) == {(i, s) for i in ("walk", "jump", "wave") for s in (0, 1)}
    saved = json.loads((out / "config.json").read_text())
    model = hm.load_model(str(random_model))
    condition = model.encode(["A person jumps up."])
    sampler = model.new_sampler(dataclasses.replace(model.sampler.grid, rows=saved["grid"]["rows"]))
    (latent,) = sampler.sample(
        condition.context,
        condition.vector,
        condition.length,
        [hm.Row(prompt=0, num_frames=24, seed=1)],
        model.config.sampling,
    )
    motion = hm.load_motion(out / "motions" / "jump_s1.npz")
    assert torch.equal(motion.rot6d, model.decode(latent).rot6d)
    for suffix in (".bvh", ".glb"):
        assert len(files(out, suffix)) == 6
    row = rows["jump", 1]
    assert row["num_frames"] == 24
    assert row["status"] == "done"
    assert row["precision"] == "float32"
    assert row["noise_seed"] == 1
    assert json.loads((out / "summary.json").read_text())["done"] == 6
    assert "A person jumps up." in (out / "index.html").read_text(encoding="utf-8")
    assert not (out / ".work").exists()


def test_the_same_command_again_computes_nothing(
    job: Callable[..., JobReport], tmp_path: Path
) -> None:
    job()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.npz")}
    report = job()
    assert (report.done, report.counts.done, report.exit_code) == (0, 3, 0)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.npz")} == before


@pytest.mark.slow
def test_a_folder_is_extended_by_prompts_seeds_and_formats(
    job: Callable[..., JobReport], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job()
    first = files(out)
    report = job(PROMPTS + "A person bows.#30#bow\n", num_seeds=2, formats=("npz", "bvh"))
    assert report.counts.export == 3
    assert report.counts.new == 5
    after = files(out)
    assert len(after) == 8
    assert {name: after[name] for name in first} == first
    assert len(files(out, ".bvh")) == 8
    assert {r["formats"] for r in manifest(out).values()} == {"npz,bvh"}


def test_a_clip_has_the_same_bytes_whatever_it_is_rendered_with(
    job: Callable[..., JobReport], tmp_path: Path
) -> None:
    job(out=tmp_path / "all", num_seeds=3)
    lines = PROMPTS.splitlines()
    shuffled = "\n".join([lines[2], "A person hops about.#40#other", lines[0]])
    grid_rows = json.loads((tmp_path / "all" / "config.json").read_text())["grid"]["rows"]
    job(shuffled, out=tmp_path / "some", num_seeds=3)
    assert json.loads((tmp_path / "some" / "config.json").read_text())["grid"]["rows"] == grid_rows
    whole, part = files(tmp_path / "all"), files(tmp_path / "some")
    shared = set(whole) & set(part)
    assert len(shared) == 6
    assert {n: part[n] for n in shared} == {n: whole[n] for n in shared}


def test_another_setting_is_refused_with_both_values(job: Callable[..., JobReport]) -> None:
    job()
    with pytest.raises(OutputError, match=r"guidance_scale is 2\.0 there, 3\.0 here"):
        job(guidance_scale=3.0)


def test_a_folder_of_something_else_is_refused(
    job: Callable[..., JobReport], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"thesis\.txt"):
        job()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_bad_rows_never_stop_the_others(job: Callable[..., JobReport], tmp_path: Path) -> None:
    report = job(PROMPTS + "#60#empty\nA person runs.#6000#long\n")
    assert (report.exit_code, report.done, report.counts.rejected) == (1, 3, 2)
    rejects = [json.loads(x) for x in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [r["line"] for r in rejects] == [4, 5]


def test_only_bad_rows_start_nothing(job: Callable[..., JobReport], tmp_path: Path) -> None:
    report = job("#60#empty\n")
    assert report.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_no_prompts_is_no_error(job: Callable[..., JobReport]) -> None:
    report = job("\n\n")
    assert (report.exit_code, report.counts.asked) == (0, 0)


def test_equal_texts_are_computed_once_and_each_id_gets_its_file(
    job: Callable[..., JobReport], tmp_path: Path
) -> None:
    job("A person walks.#40#a\nA person walks.#40#b\n")
    first, second = files(tmp_path / "out").values()
    assert first == second
    rows = manifest(tmp_path / "out")
    assert rows["a", 0]["identity"] == rows["b", 0]["identity"]
    parts = list((tmp_path / "out" / "manifest").glob("*.parquet"))
    assert len(parts) == 1


def test_an_id_keeps_its_clip(job: Callable[..., JobReport], tmp_path: Path) -> None:
    job()
    before = files(tmp_path / "out")
    report = job(PROMPTS.replace("walks ahead", "crawls ahead"))
    assert (report.counts.rejected, report.exit_code) == (1, 1)
    assert files(tmp_path / "out") == before


def test_shards_hold_the_bytes_of_files(job: Callable[..., JobReport], tmp_path: Path) -> None:
    job(out=tmp_path / "files")
    job(out=tmp_path / "shards", layout="shards")
    as_files = {Path(n).name: data for n, data in files(tmp_path / "files").items()}
    assert not list((tmp_path / "shards").rglob("*.npz"))
    held = {}
    for path in (tmp_path / "shards" / "shards").glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            held[f"{row['id']}_s{row['seed']}.npz"] = row["npz"]
    assert held == as_files
    assert (tmp_path / "shards" / "index.html").exists()
    report = job(out=tmp_path / "shards", layout="shards", formats=("npz", "bvh"))
    assert report.counts.export == 3
    for path in (tmp_path / "shards" / "shards").glob("*.parquet"):
        assert all(row["bvh"].startswith(b"HIERARCHY") for row in pq.read_table(path).to_pylist())


@pytest.mark.slow
def test_best_of_keeps_the_best_candidate(job: Callable[..., JobReport], tmp_path: Path) -> None:
    job(out=tmp_path / "all", num_seeds=4)
    job(out=tmp_path / "best", best_of=4)
    from hymotion_ray.motion.quality import measure, score

    rows = manifest(tmp_path / "best")
    for name in ("walk", "jump", "wave"):
        scores = [
            score(measure(hm.load_motion(tmp_path / "all" / "motions" / f"{name}_s{seed}.npz")))
            for seed in range(4)
        ]
        assert rows[name, 0]["noise_seed"] == int(np.argmin(scores))


def test_npz_says_what_it_is(job: Callable[..., JobReport], tmp_path: Path) -> None:
    job()
    data = np.load(io.BytesIO((tmp_path / "out" / "motions" / "walk_s0.npz").read_bytes()))
    assert data["poses"].shape == (40, 156)
    assert str(data["prompt"]) == "A person walks ahead."
    assert int(data["seed"]) == 0
    assert str(data["model"]) == "random"
    assert float(data["mocap_framerate"]) == float(data["mocap_frame_rate"]) == 30


def test_groups_are_folders_and_stay_inside(job: Callable[..., JobReport], tmp_path: Path) -> None:
    content = {"walks": ["A person walks.#40#1"], "../../evil": ["A person waves.#40#2"]}
    report = job(json.dumps(content), name="groups.json")
    assert report.done == 2
    assert (tmp_path / "out" / "motions" / "walks" / "1_s0.npz").exists()
    inside = set((tmp_path / "out").rglob("*.npz"))
    assert set(tmp_path.rglob("*.npz")) == inside
    assert len(inside) == 2


def test_a_notebook_call_gives_motions(ray, random_model: Path) -> None:
    rendered = hm.render(
        ["a person walks", "a person waves"], model=str(random_model), seeds=2, duration=1.0
    )
    assert [m.num_frames for m in rendered] == [30] * 4
    assert [m.meta["prompt"] for m in rendered][::2] == ["a person walks", "a person waves"]
    assert "<iframe" in rendered._repr_html_()


def test_an_empty_folder_input_and_a_missing_one(
    job: Callable[..., JobReport], random_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "none").mkdir()
    config = RenderConfig(
        prompts=(str(tmp_path / "none"),), model=str(random_model), out=str(tmp_path / "out")
    )
    assert run_job(config, lambda line: None).exit_code == 0
