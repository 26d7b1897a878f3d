"""Train commands as processes of their own, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class TrainCommand:
    """One train command line; `start` it as often as it is killed."""

    data: Path
    out: Path
    faults: Path
    address: str | None = None
    """Ray to join; None: one of its own."""
    options: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> list[str]:
        """What stands after `train`: the debug preset as `train_runs.debug_config` has it."""
        settings = ["input.frame_buckets=[32,64]", "saving.every_steps=3", "saving.val_clips=3"]
        found = ["--data", str(self.data), "--out", str(self.out), "--preset", "debug"]
        for setting in [*settings, "tensorboard=false"]:
            found += ["--set", setting]
        if self.address is not None:
            found += ["--address", self.address]
        return [*found, *self.options]

    def plan(self, *lines: str) -> None:
        """The faults of what starts from now on."""
        self.faults.mkdir(exist_ok=True)
        (self.faults / "plan").write_text("\n".join(lines))

    def start(self) -> subprocess.Popen[str]:
        """A process group of its own, that only this test ends."""
        self.faults.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", "hymotion_ray.cli", "train", *self.arguments],
            env={**os.environ, "HYMOTION_FAULTS": str(self.faults)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, timeout: float = 280) -> tuple[int, str]:
        """Exit code and output."""
        process = self.start()
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, output

    def arrivals(self, point: str) -> list[str]:
        """Details of the arrivals at a point so far, over all runs."""
        log = self.faults / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        fields = [line.split("\t", 3) for line in lines]
        return [detail for name, _, _, detail in fields if name == point]

    def wait_for(self, point: str, text: str, timeout: float = 240) -> None:
        """Return once a process came to a point with this detail."""
        end = time.monotonic() + timeout
        while not any(text in detail for detail in self.arrivals(point)):
            assert time.monotonic() < end, f"nobody came to {point} {text}"
            time.sleep(0.02)
