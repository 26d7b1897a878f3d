"""The pods of a RayCluster as processes of this machine: a head and CPU workers, as its YAML says.

Reads resources, labels, environment and the token mode out of the object; gives each node its own
ports, and stands folders of the test in for the volumes. Ends its own processes only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k8s_objects import lint

BIN = Path(sys.executable).parent
TOKEN = "t" * 64


def free_port() -> int:
    """A port outside of Ray's own range."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return port if port > 20_000 else port + 20_000


def _can_be_alone() -> bool:
    return shutil.which("unshare") is not None and os.geteuid() == 0


class LocalPods:
    """A running cluster; `folders` maps paths inside pods to folders here."""

    def __init__(self, spec: dict[str, Any], folders: dict[str, Path]) -> None:
        self.spec, self.folders = spec, folders
        self.temp = tempfile.mkdtemp(prefix="hmr", dir="/tmp")
        self.dashboard, self.gcs = free_port(), free_port()
        self._nodes: list[tuple[list[str], dict[str, str], subprocess.Popen[bytes]]] = []

    @property
    def url(self) -> str:
        """Of the dashboard."""
        return f"http://127.0.0.1:{self.dashboard}"

    def environment(self, group: dict[str, Any]) -> dict[str, str]:
        """The container's environment, with the token as the operator gives it."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        said = {e["name"]: e["value"] for e in lint.ray_container(group)["env"] if "value" in e}
        said = {key: value.replace("/tmp/", f"{self.temp}/") for key, value in said.items()}
        assert self.spec["authOptions"]["mode"] == "token"
        return {
            **kept,
            **said,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_TMPDIR": self.temp,
            "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
        }

    def here(self, text: str) -> str:
        """A text with the paths of volumes turned into folders here."""
        for inside, folder in self.folders.items():
            text = text.replace(inside, str(folder))
        return text

    def start(self, *groups: str) -> None:
        """Start the head, then a worker for each group named."""
        head = self.spec["headGroupSpec"]
        self._node(head, "--head", f"--port={self.gcs}", f"--dashboard-port={self.dashboard}",
                   "--dashboard-host=127.0.0.1", f"--temp-dir={self.temp}")  # fmt: skip
        self.wait(lambda: self._are_up(1), 900)
        for name in groups:
            (group,) = [g for g in self.spec["workerGroupSpecs"] if g["groupName"] == name]
            self._node(group, f"--address=127.0.0.1:{self.gcs}")
        self.wait(lambda: self._are_up(1 + len(groups)), 600)

    def _node(self, group: dict[str, Any], *options: str) -> None:
        resources = group["resources"]
        labels = ",".join(f"{key}={value}" for key, value in group.get("labels", {}).items())
        params = group["rayStartParams"]
        rest = {k: int(v) for k, v in resources.items() if k not in ("CPU", "GPU")}
        command = [
            *(str(BIN / "ray"), "start", "--block", "--disable-usage-stats", *options),
            f"--num-cpus={resources['CPU']}",
            f"--num-gpus={resources.get('GPU', 0)}",
            f"--object-store-memory={min(200_000_000, int(params['object-store-memory']))}",
            *(f"--{name}={free_port()}" for name in (
                "dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port")),
            *([f"--labels={labels}"] if labels else []),
            *([f"--resources={json.dumps(rest)}"] if rest else []),
        ]  # fmt: skip
        environment = self.environment(group)
        self._nodes.append((command, environment, self._process(command, environment)))

    @staticmethod
    def _process(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        # In a process namespace of its own where that may be: what a failed start leaves behind
        # ends with it, instead of joining the next head at the same port.
        alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "--"]
        return subprocess.Popen(
            [*(alone if _can_be_alone() else []), *command],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _are_up(self, number: int) -> bool:
        """Whether so many nodes live; one that ended meanwhile is started again.

        Ray gives up on its own raylet after 30 s, which a busy machine may need.
        """
        for k, (command, environment, process) in enumerate(self._nodes):
            if process.poll() is not None:
                self._nodes[k] = (command, environment, self._process(command, environment))
        return self._num_nodes() == number

    def _num_nodes(self) -> int:
        answer = self.get("/api/v0/nodes?detail=1")
        return sum(n["state"] == "ALIVE" for n in answer["data"]["result"]["result"])

    def request(self, path: str, body: Any = None, method: str = "GET", token: str = TOKEN) -> Any:
        """Ask the dashboard."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def get(self, path: str) -> Any:
        """Ask the dashboard; None while it does not answer."""
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            return self.request(path)
        return None

    @staticmethod
    def wait(done: Any, seconds: float) -> Any:
        """What `done` gives, once it gives something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(KeyError, TypeError):
                if found := done():
                    return found
            time.sleep(1.0)
        raise AssertionError(f"not within {seconds} s")

    def submit(self, job: dict[str, Any], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Submit a RayJob's entrypoint as its submitter does, from a folder of no meaning."""
        spec = job["spec"]
        command = [
            *(str(BIN / "ray"), "job", "submit", "--address", self.url),
            *("--entrypoint-num-cpus", str(spec["entrypointNumCpus"]), "--"),
            *shlex.split(self.here(spec["entrypoint"])),
        ]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=cwd,
            env=self.environment(self.spec["headGroupSpec"]),
            timeout=600,
        )

    def end(self) -> None:
        """End the nodes, the head last."""
        for _, _, node in reversed(self._nodes):
            # The namespace ends with its first process; without one, Ray ends its own.
            node.send_signal(signal.SIGKILL if _can_be_alone() else signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(timeout=60)
        shutil.rmtree(self.temp, ignore_errors=True)


@contextlib.contextmanager
def running(spec: dict[str, Any], folders: dict[str, Path], *groups: str) -> Iterator[LocalPods]:
    """A cluster with a worker of each group named."""
    pods = LocalPods(spec, folders)
    try:
        pods.start(*groups)
        yield pods
    finally:
        pods.end()
