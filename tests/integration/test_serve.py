"""The endpoint on a real Ray Serve: ready with a reason, real motion, upgrades and deaths."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.serve import (
    HttpConfig,
    JobsConfig,
    PoolConfig,
    ScaleConfig,
    ServeConfig,
    ServedModel,
    WarmUpConfig,
)
from hymotion_ray.formats.motions import decode_motion

pytestmark = pytest.mark.ray
ASK = {"text": "a person walks", "num_frames": 30}
WAIT_S = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what: str):
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} did not come about in {WAIT_S} s")


@pytest.fixture(scope="module")
def config(random_model, tmp_path_factory) -> ServeConfig:
    pool = PoolConfig(
        rows=2, cpus=0.5, least_step_s=0.02, scale=ScaleConfig(min_replicas=2, max_replicas=2)
    )
    return ServeConfig(
        models=(ServedModel(model=str(random_model), pools=(pool,)),),
        http=HttpConfig(port=free_port(), cpus=0.1, drain_s=20.0),
        jobs=JobsConfig(folder=str(tmp_path_factory.mktemp("serve") / "jobs")),
        warm_up=WarmUpConfig(frames=(30,)),
    )


@pytest.fixture(scope="module")
def server(ray, config) -> Iterator:
    from hymotion_ray.engine.serve.server import running

    with running(config) as server:
        seen = set()
        until = time.monotonic() + WAIT_S
        while not (state := server.ready())[0]:
            assert time.monotonic() < until, state
            seen.add(state[1])
            time.sleep(0.1)
        server.reasons = seen
        yield server


class Load:
    """Clients that ask one after another until told to stop."""

    def __init__(self, url: str, number: int = 4) -> None:
        self.url, self.answers, self._stop = url, [], threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(number)
        self._futures = [self._pool.submit(self._ask, n) for n in range(number)]

    def _ask(self, number: int) -> None:
        with httpx.Client(timeout=120) as client:
            count = 0
            while not self._stop.is_set():
                body = ASK | {"seeds": [number * 1000 + count]}
                count += 1
                try:
                    answer = client.post(f"{self.url}/v1/motions", json=body)
                    self.answers.append((answer.status_code, answer.text[:200]))
                except httpx.HTTPError as error:
                    self.answers.append((0, repr(error)))

    def stop(self) -> list[tuple[int, str]]:
        self._stop.set()
        for future in self._futures:
            future.result(timeout=150)
        self._pool.shutdown()
        return self.answers


def replicas(name: str) -> list[int]:
    """Process ids of a deployment's replicas on this cluster: Ray names processes after them."""
    import ray

    session = ray._private.worker._global_node.get_session_dir_path()
    found = []
    for process in psutil.process_iter(["cmdline", "ppid"]):
        title = " ".join(process.info["cmdline"] or [])
        if title.startswith("ray::ServeReplica:") and f":{name}" in title:
            with contextlib.suppress(psutil.Error):
                if session in " ".join(psutil.Process(process.info["ppid"]).cmdline()):
                    found.append(process.pid)
    return found


def test_ready_comes_after_a_reason_and_motion_is_real(server):
    assert server.reasons, "it was ready at once"
    with httpx.Client(base_url=server.url, timeout=120) as client:
        job = client.post("/v1/motions", json=ASK | {"seeds": [3, 4]}).json()
        assert job["state"] == "succeeded"
        for seed in (3, 4):
            content = client.get(job["result_url"], params={"seed": seed}).content
            motion = decode_motion(content, "npz")
            assert (motion.num_frames, motion.meta["seed"]) == (30, seed)
        assert client.get("/openapi.json").json()["info"]["title"] == "hymotion-ray"
        assert "x-request-id" in client.get("/livez").headers


def test_a_cut_connection_frees_the_slot(server):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        body = ASK | {"num_steps": 1000}
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/motions", json=body, timeout=1.5)

        def is_idle() -> bool:
            pools = client.get("/v1/models").json()["data"][0]["pools"]
            return all(pool["wait_s"] == 0 for pool in pools)

        began = time.monotonic()
        wait_for(is_idle, "an idle pool")
        # The replica's own count comes every second; the thousand steps would take twenty.
        assert time.monotonic() - began < 15


def test_killed_samplers_and_http_processes_lose_no_accepted_job(server, config):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        prefer = {"Prefer": "respond-async"}
        ids = [
            client.put(
                f"/v1/motions/kill-{n}", json=ASK | {"num_steps": 30, "seeds": [n]}, headers=prefer
            ).json()["id"]
            for n in range(12)
        ]
        time.sleep(0.5)
        os.kill(replicas("Sampler-default")[0], signal.SIGKILL)
        time.sleep(0.5)
        os.kill(replicas("Api")[0], signal.SIGKILL)

    def ended() -> bool:
        try:
            with httpx.Client(base_url=server.url, timeout=20) as client:
                jobs = [client.get(f"/v1/motions/{i}").json() for i in ids]
        except (httpx.HTTPError, ValueError):
            return False
        assert all(job.get("state") not in ("failed", "expired") for job in jobs), jobs
        return all(job.get("state") == "succeeded" for job in jobs)

    wait_for(ended, "the end of all accepted jobs")


@pytest.mark.slow
def test_a_rolling_upgrade_under_load_fails_no_request(server, config):
    from hymotion_ray.engine.serve.server import deploy

    wait_for(lambda: server.ready()[0], "readiness")
    load = Load(server.url)
    time.sleep(2)
    before = set(replicas("Api") + replicas("Sampler-default"))
    (model,) = config.models
    pools = tuple(dataclasses.replace(pool, least_step_s=0.015) for pool in model.pools)
    deploy(
        dataclasses.replace(
            server.config,
            models=(dataclasses.replace(server.config.models[0], pools=pools),),
            limits=dataclasses.replace(config.limits, max_seeds=32),
        )
    )
    wait_for(
        lambda: not before & set(replicas("Api") + replicas("Sampler-default")),
        "the end of every old process",
    )
    time.sleep(2)
    answers = load.stop()
    assert len(answers) > 5
    assert [answer for answer in answers if answer[0] != 200] == []


@pytest.mark.slow
def test_sigterm_finishes_what_is_waited_for(random_model, tmp_path):
    """It takes longer than the three seconds after which Ray aborts a process that got SIGTERM."""
    from hymotion_ray.engine.serve.server import Server

    pool = PoolConfig(rows=2, cpus=0.5, least_step_s=1.5)
    config = ServeConfig(
        models=(ServedModel(model=str(random_model), pools=(pool,)),),
        http=HttpConfig(port=free_port(), cpus=0.1),
        jobs=JobsConfig(folder=str(tmp_path / "jobs")),
        warm_up=WarmUpConfig(frames=(30,)),
    )
    file = tmp_path / "serve.json"
    file.write_text(json.dumps(to_mapping(config)), encoding="utf-8")
    command = [sys.executable, "-m", "hymotion_ray.cli", "serve", "--config", str(file)]
    url = f"http://127.0.0.1:{config.http.port}"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: Server(url, config).ready()[0], "readiness")
            with concurrent.futures.ThreadPoolExecutor(1) as executor:
                asked = executor.submit(httpx.post, f"{url}/v1/motions", json=ASK, timeout=60)
                time.sleep(1.0)
                process.send_signal(signal.SIGTERM)
                assert asked.result().json()["state"] == "succeeded"
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 0, said[-2000:]
    assert "ending" in said


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_the_reason(server, tmp_path):
    from hymotion_ray.engine.serve.server import deploy

    broken = dataclasses.replace(
        server.config, models=(dataclasses.replace(server.config.models[0], model="/nowhere"),)
    )
    try:
        deploy(broken)
        said = wait_for(
            lambda: (why := server.ready()[1]) and "/nowhere" in why and why, "the reason"
        )
        assert "Error" in said
    finally:
        deploy(server.config)
