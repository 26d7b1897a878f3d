"""What the YAML says is run here: entrypoints, Serve config, drain hook and environment.

A head without CPUs and workers of the dev overlay, each a Ray node of its own, with the token on.
Volumes are folders of the test. Ports, and nothing else, are changed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from k8s_objects import build, lint, one, ray_cluster
from local_pods import LocalPods, free_port, running

import hymotion_ray as hm

pytestmark = [pytest.mark.slow, pytest.mark.ray]
PROMPTS = "A person walks.#24#walk\nA person waves.#24#wave\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def pods(data: Path) -> Iterator[LocalPods]:
    spec = ray_cluster(one(build("overlays/dev/service"), "RayService"))
    with running(spec, {"/data": data}, "cpu", "cpu") as cluster:
        yield cluster


def job(name: str) -> dict[str, Any]:
    return one(build(f"overlays/dev/{name}"), "RayJob")


def test_the_dashboard_takes_no_other_token(pods: LocalPods) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        pods.request("/api/jobs/", token="x" * 64)
    assert refused.value.code == 403
    assert pods.request("/api/jobs/") == []


def test_render_from_another_directory_and_again_nothing(
    pods: LocalPods, data: Path, tmp_path: Path
) -> None:
    (data / "prompts.txt").write_text(PROMPTS)
    first = pods.submit(job("render"), tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "2/2 clips" in first.stdout + first.stderr
    assert len(list((data / "render").rglob("*.npz"))) == 2
    second = pods.submit(job("render"), tmp_path)
    assert second.returncode == 0
    assert "2 done before" in second.stdout


def test_ingest_and_train_from_another_directory(
    pods: LocalPods, data: Path, tmp_path: Path
) -> None:
    (data / "motions").mkdir(exist_ok=True)
    model = hm.load_model("tiny")
    condition = model.encode(["a person walks forward", "a person jumps"])
    rows = [hm.Row(prompt=k % 2, num_frames=90, seed=k) for k in range(6)]
    for number, latents in enumerate(model.sample(condition, rows, num_steps=4)):
        hm.save_motion(model.decode(latents), data / "motions" / f"clip{number}.npz")
    done = pods.submit(job("ingest"), tmp_path)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # clips may be turned down
    assert list((data / "shards").rglob("*.parquet")), done.stdout
    done = pods.submit(job("train"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((data / "runs" / "debug" / "checkpoints").glob("step-*"))


def serve_config(port: int, data: Path) -> dict[str, Any]:
    text = one(build("overlays/dev/service"), "RayService")["spec"]["serveConfigV2"]
    config = yaml.safe_load(text.replace("/data", str(data)))
    config["http_options"]["port"] = port
    config["http_options"]["host"] = "127.0.0.1"
    return config


def ask(port: int, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def apply(pods: LocalPods, config: dict[str, Any]) -> None:
    """Until it is taken: like the operator, which asks again while Serve's own actors start."""

    def taken() -> bool:
        try:
            pods.request("/api/serve/applications/", config, method="PUT")
        except urllib.error.HTTPError as error:
            if error.code != 500:
                raise
            return False
        return True

    pods.wait(taken, 300)


def states(pods: LocalPods) -> dict[str, Any]:
    applications = pods.request("/api/serve/applications/")["applications"]
    return applications["hymotion"]["deployments"]


def test_the_serve_config_is_applied_upgraded_and_scaled(pods: LocalPods, data: Path) -> None:
    """As the operator does it: PUT to the dashboard, again with a change, and watch it."""
    port = free_port()
    config = serve_config(port, data)
    config["proxy_location"] = "HeadOnly"  # the nodes share this machine's port
    apply(pods, config)
    pods.wait(lambda: ask(port, "/readyz"), 300)
    prompt = {"text": "a person walks", "num_frames": 30, "seeds": [1]}
    made = pods.wait(lambda: ask(port, "/v1/motions", prompt), 120)
    assert made["state"] in ("succeeded", "running", "queued")

    (pool,) = config["applications"][0]["args"]["models"][0]["pools"]
    pool["scale"] = {"min_replicas": 2, "max_replicas": 2}
    apply(pods, config)

    def scaled() -> bool:
        sampler = states(pods)["Sampler-cpu"]
        running = [r for r in sampler["replicas"] if r["state"] == "RUNNING"]
        return sampler["status"] == "HEALTHY" and len(running) == 2

    pods.wait(scaled, 300)
    assert pods.wait(lambda: ask(port, "/readyz"), 120)
    pods.request("/api/serve/applications/", method="DELETE")


def test_the_drain_hook_tells_ray_before_the_pod_ends(pods: LocalPods) -> None:
    """The preStop command itself, in the environment of a worker pod; its waiting is left out."""
    (group,) = pods.spec["workerGroupSpecs"]
    *_, command = lint.ray_container(group)["lifecycle"]["preStop"]["exec"]["command"]
    told, waiting, _ = command.partition("for turn in")
    assert waiting
    environment = {**pods.environment(group), "RAY_ADDRESS": f"127.0.0.1:{pods.gcs}"}
    done = subprocess.run(
        ["/bin/sh", "-c", told], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr

    def draining() -> bool:
        nodes = pods.get("/api/v0/nodes?detail=1")["data"]["result"]["result"]
        return any("drain" in str(node.get("state_message", "")).lower() or node["state"] == "DEAD"
                   for node in nodes)  # fmt: skip

    pods.wait(draining, 60)


@pytest.fixture(scope="module", autouse=True)
def tidy(data: Path) -> Iterator[None]:
    yield
    shutil.rmtree(data, ignore_errors=True)
