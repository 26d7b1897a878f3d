"""From a demand to a running replica: Ray's autoscaler over pretended nodes, end to end.

In namespaces of its own, so that no process, port or file of it meets those of the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray
from k8s_objects import HERE, build, one, ray_cluster
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)

pytestmark = [pytest.mark.slow, pytest.mark.ray]
A10 = {"ray.io/accelerator-type": "in(A10,A10G)"}
A100 = {"ray.io/accelerator-type": "A100"}


def fake_config(document: dict[str, Any]) -> dict[str, Any]:
    """The manifest's groups as node types of Ray's provider of pretended nodes."""
    metadata = {**document["metadata"], "namespace": "hymotion"}
    read = _derive_autoscaling_config_from_ray_cr(
        {"metadata": metadata, "spec": ray_cluster(document)}
    )
    types = read["available_node_types"]
    types.pop("headgroup")
    for each in types.values():
        each["resources"].pop("memory", None)  # of real nodes; the pretended ones share this one
    types["a100"]["max_workers"] = 1
    return {
        "cluster_name": "fake",
        "max_workers": 20,
        "idle_timeout_minutes": 0.1,
        "upscaling_speed": 1000.0,
        "provider": {"type": "fake_multinode", "launch_multiple": True, "head_node_id": "f" * 56},
        "available_node_types": {
            **types,
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        },
        "head_node_type": "ray.head.default",
        "auth": {},
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
        "file_mounts": {},
        "cluster_synced_files": [],
    }


def isolated() -> list[str]:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("needs unshare, as root")
    return ["unshare", "--pid", "--fork", "--net", "--mount", "--mount-proc", "--kill-child", "--"]


def test_replicas_start_pools_share_cards_fall_back_and_let_go() -> None:
    document = one(build("overlays/mixed/service"), "RayService")
    half = {"num_cpus": 1, "num_gpus": 0.5, "label_selector": A100}
    half["fallback_strategy"] = [{"label_selector": A10}]
    asked = {
        "two_on_one_a100": [half, half],
        "the_third_on_an_a10": [half],
        "cpu_work": [{"num_cpus": 1}] * 4,
    }
    temp = tempfile.mkdtemp(prefix="hmr", dir="/tmp")
    config = Path(temp) / "config.json"
    config.write_text(json.dumps(fake_config(document)))
    # Ray's package lacks the provider's defaults; the namespace sees a copy that has them.
    provider = Path(ray.__file__).parent / "autoscaler" / "_private" / "fake_multi_node"
    shutil.copytree(provider, f"{temp}/provider", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(config, f"{temp}/provider/example.yaml")
    program = (
        f"ip link set lo up && mount --bind {temp}/provider {provider}"
        f" && exec {sys.executable} {HERE / 'fake_nodes.py'} {config} {temp}/r"
    )
    try:
        done = subprocess.run(
            [*isolated(), "sh", "-c", program],
            capture_output=True,
            text=True,
            timeout=1000,
            env={
                **os.environ,
                "ASKED": json.dumps(asked),
                "RAY_AUTH_MODE": "disabled",
                "RAY_TMPDIR": temp,
            },
        )
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["idle"] == {"head": 1, "cpu": 1}
    assert told["two_on_one_a100"] == ["a100", "a100"]
    assert told["the_third_on_an_a10"][0] in ("a10", "a10-spot")
    assert told["cpu_work"] == ["cpu"] * 4
    assert told["busy"]["a100"] == 1
    assert sum(told["busy"].get(pool, 0) for pool in ("a10", "a10-spot")) == 1
    assert told["after"] == {"head": 1, "cpu": 1}
