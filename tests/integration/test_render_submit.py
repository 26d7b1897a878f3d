"""The job script: the command's flags, from any folder, and through `ray job submit`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from render_driver import clips, manifest

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "pipelines" / "render.py"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, cwd=cwd
    )


def test_the_script_has_the_flags_and_exit_codes_of_the_command(tmp_path: Path) -> None:
    shown = run("--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert "--max-failures" in shown.stdout
    missing = run("none.txt", "--model", "none", "--out", "out", cwd=tmp_path)
    assert missing.returncode == 2
    assert "Error: there is no model 'none'" in missing.stderr
    assert "Traceback" not in missing.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def head() -> Iterator[str]:
    """The address of a head node's job server; the head is this test's own."""
    folder = tempfile.mkdtemp(prefix="hmr", dir="/tmp")
    port, dashboard, agent = (free_port() for _ in range(3))
    process = subprocess.Popen(
        [
            str(Path(sys.executable).parent / "ray"),
            *("start", "--head", "--block", "--num-cpus", "2", f"--port={port}"),
            *(f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"),
            f"--temp-dir={folder}",
            *("--object-store-memory", "200000000", "--disable-usage-stats"),
        ],
        env={**os.environ, "RAY_TMPDIR": folder},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    yield f"http://127.0.0.1:{dashboard}"
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)


def free_port() -> int:
    """A port outside of Ray's own range."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return port if port > 20_000 else port + 20_000


@pytest.mark.slow
@pytest.mark.ray
def test_a_submitted_job_renders_and_again_does_nothing(
    head: str, random_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.txt").write_text("A person walks.#24#walk\nA person waves.#24#wave\n")
    work = tmp_path / "elsewhere"
    work.mkdir()
    (work / "render.py").write_text(SCRIPT.read_text())
    submit = [
        str(Path(sys.executable).parent / "ray"),
        *("job", "submit", "--address", head, "--working-dir", str(work), "--"),
        *(sys.executable, "render.py", str(tmp_path / "p.txt"), "--model", str(random_model)),
        *("--out", str(tmp_path / "out")),
    ]
    for _ in range(60):
        first = subprocess.run(submit, capture_output=True, text=True, cwd=tmp_path)
        said = first.stdout + first.stderr
        if not any(words in said for words in ("Failed to connect", "No available agent")):
            break
        time.sleep(1.0)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "render: 2/2 clips" in first.stdout
    assert len(clips(tmp_path / "out")) == len(manifest(tmp_path / "out")) == 2
    second = subprocess.run(submit, capture_output=True, text=True, cwd=tmp_path)
    assert second.returncode == 0
    assert "0 clips rendered, 2 done before" in second.stdout
