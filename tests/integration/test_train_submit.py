"""The job script: eight ranks on two nodes by one `ray job submit`, from another folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_shards import small_dataset
from ray.util.state import list_nodes
from test_render_submit import free_port
from train_driver import TrainCommand
from train_runs import assert_same_weights, debug_config, train_here

from hymotion_ray.engine.train.events import read_events

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "pipelines" / "train.py"
RAY = str(Path(sys.executable).parent / "ray")


def test_the_script_has_the_flags_and_exit_codes_of_the_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    shown = run("--help")
    assert shown.returncode == 0
    assert "--max-steps" in shown.stdout
    missing = run("--data", "none", "--out", "out")
    assert missing.returncode == 2
    assert "holds no manifest.json" in missing.stderr
    assert "Traceback" not in missing.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def two_nodes() -> Iterator[str]:
    """The address of the job server of a cluster of two nodes with four CPUs each."""
    port, dashboard, *agents = (free_port() for _ in range(4))
    common = ["--block", "--num-cpus", "4", "--object-store-memory", "100000000"]
    folder = tempfile.mkdtemp(prefix="hmr", dir="/tmp")
    first = [
        *("start", "--head", f"--port={port}", f"--dashboard-port={dashboard}"),
        *(f"--temp-dir={folder}", f"--dashboard-agent-listen-port={agents[0]}"),
    ]
    second = ["start", f"--address=127.0.0.1:{port}", f"--dashboard-agent-listen-port={agents[1]}"]
    processes = []
    url = f"http://127.0.0.1:{dashboard}"
    for number, arguments in enumerate((first, second), start=1):
        processes.append(
            subprocess.Popen(
                [RAY, *arguments, *common, "--disable-usage-stats"],
                env={**os.environ, "RAY_TMPDIR": folder},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        wait_for_nodes(url, number)
    yield url
    for process in reversed(processes):
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def wait_for_nodes(url: str, number: int) -> None:
    """Return once so many nodes are in the cluster; a busy machine needs minutes for each."""
    end = time.monotonic() + 300
    alive, problem = 0, ""
    while time.monotonic() < end:
        try:
            alive = sum(node.state == "ALIVE" for node in list_nodes(address=url, timeout=20))
            if alive >= number:
                return
        except Exception as error:  # noqa: BLE001 - whatever a server says that is not up yet
            problem = f": {error}"
        time.sleep(1.0)
    pytest.fail(f"{alive} of {number} nodes after 300 s{problem}")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1500)
def test_eight_submitted_ranks_on_two_nodes_equal_one_worker(
    two_nodes: str, tmp_path: Path
) -> None:
    data = small_dataset(tmp_path / "data")
    batch = ["global_batch=8", "micro_batch=8"]
    alone = debug_config(data, tmp_path / "alone", *batch, max_steps=3)
    train_here(alone)
    work = tmp_path / "elsewhere"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT.read_text())
    options = ["--max-steps", "3", "--workers", "8", "--global-batch", "8", "--micro-batch", "8"]
    command = TrainCommand(data, tmp_path / "out", tmp_path / "faults", None, options)
    submit = [
        *(RAY, "job", "submit", "--address", two_nodes, "--working-dir", str(work), "--"),
        *(sys.executable, "train.py", *command.arguments),
    ]
    for _ in range(60):
        done = subprocess.run(submit, capture_output=True, text=True, cwd=tmp_path)
        said = done.stdout + done.stderr
        if not any(words in said for words in ("Failed to connect", "No available agent")):
            break
        time.sleep(2.0)
    assert done.returncode == 0, said
    starts = [e for e in read_events(tmp_path / "out") if e["kind"] == "start"]
    assert sorted(e["rank"] for e in starts) == list(range(8))
    assert {e["world_size"] for e in starts} == {8}
    by_node = Counter(e["node_id"] for e in starts)
    assert sorted(by_node.values()) == [4, 4]
    assert_same_weights(tmp_path / "out", tmp_path / "alone", 3)
