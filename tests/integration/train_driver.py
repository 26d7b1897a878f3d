"""Train commands as processes of their own, to be killed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from driver_process import DriverProcess


@dataclass
class TrainCommand(DriverProcess):
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

    @property
    def command(self) -> list[str]:
        """The train command."""
        return ["train", *self.arguments]

    def wait_for(self, point: str, text: str, timeout: float = 240) -> None:
        """Return once a process came to a point with this detail."""
        end = time.monotonic() + timeout
        while not any(text in detail for detail in self.arrivals(point)):
            assert time.monotonic() < end, f"nobody came to {point} {text}"
            time.sleep(0.02)
