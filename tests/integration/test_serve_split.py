"""Replicas that are groups of processes, on a real Ray Serve: they answer, and outlive a loss."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from test_serve import ASK, free_port, wait_for

import hymotion_ray as hm
from hymotion_ray.config.serve import (
    HttpConfig,
    JobsConfig,
    PoolConfig,
    ScaleConfig,
    ServeConfig,
    ServedModel,
    WarmUpConfig,
)
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.formats.motions import decode_motion

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray")]


def followers() -> list[int]:
    """Process ids of the followers of this machine's groups, by the names that Ray gives them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if " ".join(process.info["cmdline"] or []).startswith("ray::_Follower"):
            found.append(process.pid)
    return found


def test_a_split_replica_answers_and_is_replaced_when_a_process_is_lost(
    random_model: Path, tmp_path: Path
) -> None:
    from hymotion_ray.engine.serve.server import running

    pool = PoolConfig(
        rows=2,
        cpus=0.4,
        split=SplitConfig(way="heads", size=2),
        scale=ScaleConfig(min_replicas=2, max_replicas=2),
    )
    config = ServeConfig(
        models=(ServedModel(model=str(random_model), pools=(pool,)),),
        http=HttpConfig(port=free_port(), cpus=0.1),
        jobs=JobsConfig(folder=str(tmp_path / "jobs")),
        warm_up=WarmUpConfig(frames=(30,)),
    )
    with running(config) as server:
        wait_for(lambda: server.ready()[0], "readiness")
        with httpx.Client(base_url=server.url, timeout=120) as client:
            job = client.post("/v1/motions", json=ASK | {"seeds": [7]}).json()
            assert job["state"] == "succeeded"
            content = client.get(job["result_url"], params={"seed": 7}).content
            model = hm.load_model(str(random_model))
            row = hm.Row(prompt=0, num_frames=30, seed=7)
            (latent,) = model.sample(model.encode([ASK["text"]]), [row])
            expected = model.decode(latent).joints
            np.testing.assert_allclose(decode_motion(content, "npz").joints, expected, atol=1e-4)

            prefer = {"Prefer": "respond-async"}
            ids = [
                client.put(
                    f"/v1/motions/lost-{n}", json=ASK | {"num_steps": 60, "seeds": [n]},
                    headers=prefer,
                ).json()["id"]
                for n in range(6)
            ]  # fmt: skip
            time.sleep(0.3)
            before = followers()
            os.kill(before[0], signal.SIGKILL)

            def ended() -> bool:
                jobs = [client.get(f"/v1/motions/{i}").json() for i in ids]
                assert all(job.get("state") not in ("failed", "expired") for job in jobs), jobs
                return all(job.get("state") == "succeeded" for job in jobs)

            wait_for(ended, "the end of all accepted jobs")
            wait_for(lambda: len(set(followers()) - set(before)) >= 1, "a new group")
