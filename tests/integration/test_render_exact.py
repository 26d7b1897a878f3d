"""`--exact` keeps a folder to one class of bits, and what cannot be of it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from render_driver import clips, manifest

from hymotion_ray.config.grid import Grid, GridCell
from hymotion_ray.config.render import RenderConfig, ResourceConfig
from hymotion_ray.engine.render.job import JobReport, run_job
from hymotion_ray.engine.render.pinned import PinnedClass
from hymotion_ray.errors import ClusterError, ConfigError, OutputError

PROMPTS = "A person walks.#40#walk\nA person waves.#24#wave\nA person runs.#90#run\n"


@pytest.fixture
def job(ray, random_model: Path, tmp_path: Path) -> Callable[..., JobReport]:
    def run(prompts: str = PROMPTS, **settings: Any) -> JobReport:
        path = tmp_path / "prompts.txt"
        path.write_text(prompts)
        config = RenderConfig(
            prompts=(str(path),),
            model=str(random_model),
            out=str(tmp_path / "out"),
            num_steps=3,
            resources=ResourceConfig(num_samplers=1),
            **settings,
        )
        return run_job(config, lambda line: None)

    return run


@pytest.mark.ray
def test_one_class_or_none(job: Callable[..., JobReport], tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = job(exact="2x60x16")
    assert (report.exit_code, report.done, report.counts.rejected) == (1, 2, 1)
    (reject,) = [json.loads(x) for x in (out / "rejects.jsonl").read_text().splitlines()]
    assert (reject["code"], reject["prompt_id"]) == ("outside_cell", "run")
    rows = manifest(out)
    assert {row["cell"] for row in rows.values()} == {"2x60x16"}
    first = clips(out)

    saved = json.loads((out / "config.json").read_text())
    assert saved["made_on"]
    assert all("torch" in made_on for made_on in saved["made_on"].values())
    report = job(PROMPTS + "A person bows.#30#bow\n", exact="2x60x16")
    assert report.done == 1
    assert json.loads((out / "config.json").read_text())["made_on"] == saved["made_on"]
    assert {n: d for n, d in clips(out).items() if n in first} == first

    with pytest.raises(OutputError, match="exact is '2x60x16' there, None here"):
        job()
    saved["made_on"] = dict.fromkeys(saved["made_on"], "another processor, torch 1")
    (out / "config.json").write_text(json.dumps(saved))
    report = job(PROMPTS + "A person hops.#30#hop\n", exact="2x60x16")
    assert report.exit_code == 3
    assert "made on another processor, torch 1" in str(report.stopped)
    assert "hop" not in {item for item, _ in manifest(out)}


def test_a_step_is_held_to_what_it_first_ran_on() -> None:
    kept: list[dict[str, str]] = []
    pinned = PinnedClass({}, kept.append)
    pinned.check("sample", "A10", "torch 2")
    pinned.check("finish", "a CPU", "torch 2")
    pinned.check("sample", "A10", "torch 2")
    assert kept == [
        {"sample": "A10, torch 2"},
        {"sample": "A10, torch 2", "finish": "a CPU, torch 2"},
    ]
    for kind, build in (("A100", "torch 2"), ("A10", "torch 3")):
        with pytest.raises(ClusterError, match="--exact pins one class"):
            pinned.check("sample", kind, build)


def test_cells_are_read_as_they_are_written() -> None:
    cell = GridCell(rows=64, frames=150, tokens=48)
    assert GridCell.parse(str(cell)) == cell
    grid = Grid.of_one(cell)
    assert {grid.cell(n, k, 360) for n in (1, 20, 150) for k in (1, 48)} == {cell}
    for text in ("64x150", "64x150x0", "-1x2x3", "64x150x48x2", "", "ax2x3"):
        with pytest.raises(ConfigError, match="ROWSxFRAMESxTOKENS"):
            GridCell.parse(text)
    with pytest.raises(ConfigError, match="rows"):
        RenderConfig(
            prompts=("a",), model="tiny", out="o", exact="4x60x16", resources=ResourceConfig(rows=8)
        )
