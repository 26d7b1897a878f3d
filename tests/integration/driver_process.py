"""A command as a process of its own, to be killed at a point, started again and watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path


class DriverProcess(ABC):
    """One command line; `start` it as often as it is killed. `faults` holds plan and log."""

    faults: Path

    @property
    @abstractmethod
    def command(self) -> Sequence[str]:
        """What stands after `hymotion-ray`."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables of its own."""
        return {}

    def plan(self, *lines: str) -> None:
        """The faults of what starts from now on."""
        self.faults.mkdir(exist_ok=True)
        (self.faults / "plan").write_text("\n".join(lines))

    def start(self) -> subprocess.Popen[str]:
        """A process group of its own, that only this test ends."""
        self.faults.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", "hymotion_ray.cli", *self.command],
            env={**os.environ, "HYMOTION_FAULTS": str(self.faults), **self.variables},
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
