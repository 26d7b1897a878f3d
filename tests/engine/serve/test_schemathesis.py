"""Requests made from the OpenAPI document, good and bad: nothing crashes, all is as described."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import Live, serving
from local_pools import make_pools

from hymotion_ray.config.serve import JobsConfig, PoolConfig, QueueConfig, ServeConfig, ServedModel

HERE = Path(__file__).resolve().parent
PROGRAM = Path(sys.executable).parent / "schemathesis"


@pytest.fixture(scope="module")
def live(random_model, tmp_path_factory) -> Iterator[Live]:
    config = ServeConfig(
        models=(ServedModel(model="unused", pools=(PoolConfig(rows=2),)),),
        jobs=JobsConfig(folder=str(tmp_path_factory.mktemp("jobs"))),
        queue=QueueConfig(max_wait_s=2.0),
    )
    made = make_pools(str(random_model), config)
    with serving(config, made) as running:
        yield running
    for pool in made[1].values():
        pool.core.stop()


def run(live: Live, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if not PROGRAM.exists():
        pytest.skip("schemathesis is not installed")
    command = [str(PROGRAM), "--config-file", str(HERE / "schemathesis.toml"), "run", *options]
    return subprocess.run(
        [*command, f"{live.url}/openapi.json"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(HERE), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


def test_the_main_routes_do_what_the_document_says(live, tmp_path):
    main = ["--include-path", "/v1/motions", "--include-path", "/v1/motions/{job_id}"]
    done = run(live, tmp_path, "--phases", "examples,coverage", *main)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    assert "passed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_route_does_what_the_document_says(live, tmp_path):
    done = run(live, tmp_path, "--phases", "examples,coverage")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_so_it_does_for_many_requests_and_chains_of_them(live, tmp_path):
    done = run(live, tmp_path, "--max-examples", "60")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
