"""A real autoscaler over pretended nodes: the program that test_fake_nodes.py runs, isolated.

    python fake_nodes.py CONFIG TEMP

Starts a head with autoscaler v2, whose provider starts Ray nodes as processes here. Asks for
replicas as the manifest's endpoint does, and prints what came up, as JSON, on the last line. Never
calls `ray stop`: the namespaces that it runs in end with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

HEAD_ID = "f" * 56


def start_head(config: str, temp: str) -> subprocess.Popen[str] | None:
    """The head, which starts the autoscaler; None when Ray gave up on it.

    Ray gives its own raylet 30 s, which a busy machine may not have.
    """
    environment = {
        **os.environ,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    }
    command = [
        *(str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--num-cpus=0"),
        *(f"--autoscaling-config={config}", f"--temp-dir={temp}", "--port=6379"),
        *("--object-store-memory=100000000", "--disable-usage-stats", "--include-dashboard=false"),
    ]
    head = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert head.stdout is not None
    for line in head.stdout:
        sys.stderr.write(line)
        if "Ray runtime started" in line:
            threading.Thread(target=shutil.copyfileobj, args=(head.stdout, sys.stderr)).start()
            return head
    return None


def pools(ray: Any) -> dict[str, int]:
    """Living nodes by pool."""
    found = Counter(
        node["Labels"].get("hymotion-pool", "head") for node in ray.nodes() if node["Alive"]
    )
    return dict(found)


def until(true: Any, seconds: float) -> bool:
    """Wait for something to be true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(1.0)
    return False


def main() -> None:
    """Start, ask, watch, let go, watch."""
    config, temp = sys.argv[1:]
    head = None
    for attempt in range(6):
        head = start_head(config, f"{temp}{attempt}")
        if head is not None:
            break
    assert head is not None, "no head"
    import ray

    ray.init(address="127.0.0.1:6379", logging_level="error", log_to_driver=False)

    @ray.remote
    class Replica:
        def pool(self) -> str:
            return ray.get_runtime_context().get_node_labels()["hymotion-pool"]

    def ask(options: list[dict[str, Any]]) -> list[str]:
        actors = [Replica.options(**each).remote() for each in options]
        kept.extend(actors)
        return ray.get([actor.pool.remote() for actor in actors], timeout=400)

    kept: list[Any] = []
    told: dict[str, Any] = {}
    until(lambda: pools(ray).get("cpu"), 200)
    told["idle"] = pools(ray)
    for name, options in json.loads(os.environ["ASKED"]).items():
        told[name] = ask(options)
    told["busy"] = pools(ray)
    kept.clear()
    until(lambda: set(pools(ray)) <= {"head", "cpu"}, 200)
    told["after"] = pools(ray)
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    head.terminate()
    head.wait(60)


if __name__ == "__main__":
    main()
