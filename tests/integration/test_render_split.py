"""Render jobs whose samplers are groups of processes: the clips of one process, whatever dies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from render_driver import manifest

import hymotion_ray as hm
from hymotion_ray.config.render import RenderConfig, ResourceConfig
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.engine import faults
from hymotion_ray.engine.render.job import JobReport, run_job
from hymotion_ray.errors import ConfigError, OutputError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray")]

WORDS = ("walks", "jumps", "waves", "bows", "runs", "turns", "kneels", "sits")
TOLERANCE = 1e-4
"""Of joint positions in metres: sums over processes are made in another order."""


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Sets the faults of the jobs that follow; the folder of their log."""
    folder = tmp_path / "faults"
    folder.mkdir()

    def set_faults(*lines: str) -> Path:
        (folder / "plan").write_text("\n".join(lines))
        return folder

    faults.use(str(folder))
    yield set_faults
    faults.use(None)


@pytest.fixture
def job(random_model: Path, tmp_path: Path) -> Callable[..., JobReport]:
    def run(out: str, split: str, **settings: Any) -> JobReport:
        path = tmp_path / "prompts.txt"
        path.write_text("\n".join(f"A person {w}.#24#{w}" for w in WORDS))
        config = RenderConfig(
            prompts=(str(path),),
            model=str(random_model),
            out=str(tmp_path / out),
            split=SplitConfig.parse(split),
            resources=ResourceConfig(num_samplers=settings.pop("num_samplers", 1), rows=2),
            **settings,
        )
        return run_job(config, lambda line: None)

    return run


def assert_clips_of_one_process(out: Path, model_folder: Path) -> None:
    """Every clip lies in the folder once, and is what one process makes of it."""
    rows = manifest(out)
    assert {i: row["status"] for (i, _), row in rows.items()} == dict.fromkeys(WORDS, "done")
    model = hm.load_model(str(model_folder))
    for (word, seed), row in rows.items():
        condition = model.encode([row["text"]])
        (latent,) = model.sample(condition, [hm.Row(prompt=0, num_frames=24, seed=seed)])
        expected = model.decode(latent).joints
        np.testing.assert_allclose(
            hm.load_motion(out / row["file"]).joints, expected, atol=TOLERANCE, err_msg=word
        )


@pytest.mark.slow
def test_a_lost_process_fails_its_group_over_to_another(
    job: Callable[..., JobReport], plan: Callable[..., Path], random_model: Path, tmp_path: Path
) -> None:
    """Two groups of two; a follower is killed in the middle of a clip."""
    log = plan("follow:6:kill") / "log"
    report = job("out", "heads:2", num_samplers=2)
    assert (report.exit_code, report.done, report.failed) == (0, len(WORDS), 0)
    assert report.mishaps == {"killed": 1, "hung": 0, "lost_with_node": 0}
    out = tmp_path / "out"
    assert_clips_of_one_process(out, random_model)
    assert {row["device"].rpartition(", ")[2] for row in manifest(out).values()} == {"heads:2"}
    followers = {line.split("\t")[1] for line in log.read_text().splitlines() if "follow" in line}
    assert len(followers) >= 2, "one of the groups had no work"


@pytest.mark.slow
@pytest.mark.parametrize("split", ["heads:4", "rows:2", "rows:4", "layers:2:3"])
def test_every_way_makes_the_clips_of_one_process(
    job: Callable[..., JobReport], random_model: Path, tmp_path: Path, split: str
) -> None:
    if split.endswith("4"):  # two heads do not divide by four, nor do two rows
        with pytest.raises(ConfigError):
            job("out", split)
        return
    report = job("out", split)
    assert (report.exit_code, report.done) == (0, len(WORDS))
    assert_clips_of_one_process(tmp_path / "out", random_model)


@pytest.mark.slow
def test_an_exact_folder_keeps_its_split(job: Callable[..., JobReport], tmp_path: Path) -> None:
    assert job("out", "layers:2", exact="2x30x16").exit_code == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["folder"]["split"] == (
        "layers:2:4"
    )
    with pytest.raises(OutputError, match=r"split is 'layers:2:4' there, 'heads:2' here"):
        job("out", "heads:2", exact="2x30x16")
