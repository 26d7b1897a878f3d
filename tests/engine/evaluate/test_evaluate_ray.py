"""Evaluation over Ray: the same numbers, and a file that kills its process is the one rejected."""

from __future__ import annotations

import pytest
from made_sources import PROMPTS, doing, write_folder

from hymotion_ray.config.evaluate import EvaluateConfig
from hymotion_ray.engine.evaluate import source
from hymotion_ray.engine.evaluate.job import run_evaluate
from hymotion_ray.errors import ConfigError
from hymotion_ray.formats.motions import save_motion

pytestmark = pytest.mark.ray


def _run(path, num_workers, **options):
    config = EvaluateConfig(path=str(path), num_workers=num_workers, **options)
    return run_evaluate(config, lambda line: None)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(source, "FILES_A_PIECE", 3)


def test_workers_find_what_one_process_finds(ray, tmp_path, small_pieces):
    folder = write_folder(tmp_path / "clips", num_seeds=5)
    (folder / "bad.npz").write_bytes(b"bad")
    here, there = _run(folder, 0), _run(folder, 2)
    assert there.rejects == here.rejects == {"damaged": 1}
    assert there.metrics == here.metrics
    assert there.num_clips == 10


def test_a_clip_that_kills_its_process_is_named(ray, tmp_path, small_pieces):
    folder = tmp_path / "clips"
    folder.mkdir()
    for number in range(4):
        save_motion(doing("jump" if number == 2 else "walk", 40), folder / f"{number}.npz")
    report = _run(folder, 2, embedder="embedders:Lethal")
    assert (report.num_clips, report.rejects) == (3, {"reader_died": 1})
    assert report.first_rejects[0]["name"] == "2.npz"


def test_an_embedder_that_fails_ends_the_job_with_its_error(ray, tmp_path):
    with pytest.raises(ConfigError, match="gave motions of shape"):
        _run(write_folder(tmp_path / "clips"), 1, embedder="embedders:Broken")


@pytest.mark.slow
def test_a_model_is_rendered_first_and_again_only_where_something_is_left(
    ray, tmp_path, random_model
):
    prompts = tmp_path / "prompts.csv"
    lines = [f"{prompt},{action}\n" for prompt, action in PROMPTS.items()]
    prompts.write_text("prompt,action\n" + "".join(lines))
    options = {"prompts": str(prompts), "num_seeds": 2, "num_steps": 2, "out": str(tmp_path / "o")}
    report = _run(random_model, 0, **options)
    assert (report.num_clips, report.exit_code) == (4, 0)
    assert {row["num"] for row in report.actions()["prompts"]} == {2}
    assert report.model["num_seeds"] == 2
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "o").rglob("*.npz")}
    assert len(written) == 4
    again = _run(random_model, 0, **options)
    assert again.metrics == report.metrics
    assert written == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "o").rglob("*.npz")}
