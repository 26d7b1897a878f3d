"""Each class of failure in a whole job: only what is bad fails, and the next run mends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from render_driver import clips, manifest

from hymotion_ray.config.render import RenderConfig, ResourceConfig
from hymotion_ray.engine import faults
from hymotion_ray.engine.lease import Lease
from hymotion_ray.engine.render.job import JobReport, run_job
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import open_store

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray")]

WORDS = ("walks", "jumps", "waves", "bows", "runs", "turns", "kneels", "sits")


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Sets the faults of the jobs that follow; none without lines."""
    folder = tmp_path / "faults"
    folder.mkdir()

    def set_faults(*lines: str) -> None:
        (folder / "plan").write_text("\n".join(lines))

    faults.use(str(folder))
    yield set_faults
    faults.use(None)


@pytest.fixture
def job(random_model: Path, tmp_path: Path) -> Callable[..., JobReport]:
    def run(say: Callable[[str], None] = lambda line: None, **settings: Any) -> JobReport:
        path = tmp_path / "prompts.txt"
        path.write_text("\n".join(f"A person {w}.#24#{w}" for w in WORDS))
        config = RenderConfig(
            prompts=(str(path),),
            model=str(random_model),
            out=str(tmp_path / "out"),
            resources=ResourceConfig(num_samplers=1, rows=4),
            **settings,
        )
        return run_job(config, say)

    return run


def failures(out: Path) -> dict[str, str]:
    lines = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    return {line["id"]: line["error_code"] for line in lines}


def test_bad_items_fail_alone_and_are_mended_by_the_next_run(
    job: Callable[..., JobReport], plan: Callable[..., None], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    plan("encode:*:raise:jumps", "decode:*:exit:bows", "sample:*:kill:sits")
    report = job()
    assert (report.exit_code, report.done, report.failed) == (1, 5, 3)
    assert report.mishaps == {"killed": 5, "hung": 0, "lost_with_node": 0}
    bad = {"jumps": "encode_failed", "bows": "decode_failed", "sits": "poison"}
    assert failures(out) == bad
    rows = manifest(out)
    assert {i for (i, _), row in rows.items() if row["status"] == "failed"} == set(bad)
    assert "made on purpose" in rows["jumps", 0]["error"]
    first = clips(out)
    plan()
    report = job()
    assert (report.exit_code, report.done, report.counts.done) == (0, 3, 5)
    assert failures(out) == {}
    rows = manifest(out)
    assert {i: row["attempt"] for (i, _), row in rows.items()} == {
        word: 2 if word in bad else 1 for word in WORDS
    }
    after = clips(out)
    assert len(after) == len(WORDS)
    assert {name: after[name] for name in first} == first


def test_a_full_disk_stops_the_job_and_the_same_command_goes_on(
    job: Callable[..., JobReport], plan: Callable[..., None], tmp_path: Path
) -> None:
    plan("rename:6:nospace:motions/")
    report = job()
    assert report.exit_code == 3
    assert "the disk is full" in str(report.stopped)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["exit_code"] == 3
    report = job()
    assert (report.exit_code, report.counts.done, report.done) == (0, 4, 4)
    assert len(clips(tmp_path / "out")) == len(manifest(tmp_path / "out")) == len(WORDS)


def test_too_many_failures_stop_the_job(
    job: Callable[..., JobReport], plan: Callable[..., None], tmp_path: Path
) -> None:
    plan("encode:*:raise")
    report = job(max_failures="2")
    assert report.exit_code == 3
    assert "more than --max-failures 2" in str(report.stopped)
    assert report.failed == 3
    assert set(failures(tmp_path / "out").values()) == {"encode_failed"}


@pytest.mark.slow
def test_a_model_that_no_process_can_load_stops_the_job(
    job: Callable[..., JobReport], plan: Callable[..., None]
) -> None:
    plan("setup-sample:*:raise")
    report = job()
    assert report.exit_code == 3
    assert "no render process could start" in str(report.stopped)


def test_a_folder_in_use_is_refused(job: Callable[..., JobReport], tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    with Lease(store, lambda line: None), pytest.raises(OutputError, match="in use by process"):
        job()
