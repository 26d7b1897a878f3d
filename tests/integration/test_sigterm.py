"""SIGTERM, as from `ray job stop`, Slurm or Kubernetes: jobs end as at Ctrl-C, and go on later.

Each is told in the middle of its work, most while a process of it hangs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from driver_process import DriverProcess
from made_shards import small_dataset
from train_driver import TrainCommand

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class Plain(DriverProcess):
    """Any command."""

    words: list[str]
    faults: Path

    @property
    def command(self) -> list[str]:
        """As given."""
        return self.words


def _ends_in_order(
    command: DriverProcess, is_amid_work: Callable[[], bool], number: int = signal.SIGTERM
) -> str:
    """Start, tell it to end once it is amid its work; what it said."""
    process = command.start()
    try:
        end = time.monotonic() + 240
        while not is_amid_work():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end, "it never came so far"
            time.sleep(0.02)
        process.send_signal(number)
        said, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said
    command.plan()
    return said


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(f"a person {word}" for word in ("walks", "runs", "jumps", "waves")))
    return str(path)


def test_render(tmp_path, prompts, random_model):
    out = tmp_path / "out"
    words = ["render", prompts, "--model", str(random_model), "--out", str(out), "--rows", "1"]
    command = Plain([*words, "--samplers", "1", "--duration", "0.8"], tmp_path / "faults")
    command.plan("sample:3:hang")
    said = _ends_in_order(command, lambda: len(command.arrivals("sample")) == 3)
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("*.npz")}
    assert f"{len(kept)} clips rendered in this run are safe" in said
    assert len(kept) < 4
    assert not list(out.rglob("*.tmp"))
    code, said = command.run()
    assert code == 0, said
    assert f"{4 - len(kept)} clips rendered, {len(kept)} done before" in said
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_evaluate(tmp_path, prompts, random_model):
    words = ["evaluate", str(random_model), "--prompts", prompts, "--out", str(tmp_path / "out")]
    command = Plain([*words, "--seeds", "1", "--steps", "1"], tmp_path / "faults")
    command.plan("sample:1:hang")
    _ends_in_order(command, lambda: bool(command.arrivals("sample")))
    assert not (tmp_path / "out" / "report.json").exists()
    code, said = command.run()
    assert code == 0, said
    assert (tmp_path / "out" / "report.json").exists()


def test_ingest(tmp_path, shared):
    out = tmp_path / "out"
    words = [
        "ingest",
        f"{shared}/corpus/deepmimic/*_[jks]*.txt",
        "--out",
        str(out),
        "--readers",
        "1",
    ]
    one_by_one = ["--set", "work.chunk_files=1", "--report-clips", "0"]
    command = Plain([*words, *one_by_one], tmp_path / "faults")
    _ends_in_order(command, lambda: any((out / ".work").rglob("index.parquet")))
    assert not (out / "manifest.json").exists()
    code, said = command.run()
    assert code in (0, 1), said
    assert (out / "manifest.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_train(ray, tmp_path, number):
    data, address = small_dataset(tmp_path / "shards"), ray.get_runtime_context().gcs_address
    options = ["--max-steps", "6", "--set", "saving.in_background=false"]
    command = TrainCommand(data, tmp_path / "out", tmp_path / "faults", address, options)
    command.plan("step:1:hang:step 5")
    said = _ends_in_order(
        command, lambda: any("step 5" in at for at in command.arrivals("step")), number
    )
    assert "interrupted at step 3" in said
    code, said = command.run()
    assert code == 0, said
    assert "training from step 3" in said
