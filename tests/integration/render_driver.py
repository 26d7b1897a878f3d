"""Render commands as processes of their own, to be killed; and what they leave, to be compared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.formats.atomic import open_store


@dataclass
class Command:
    """One render command line; `start` it as often as it is killed."""

    prompts: Path
    model: Path
    out: str
    faults: Path
    address: str | None = None
    """Ray to join; None: one of its own."""
    options: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def plan(self, *lines: str) -> None:
        """The faults of what starts from now on."""
        self.faults.mkdir(exist_ok=True)
        (self.faults / "plan").write_text("\n".join(lines))

    def start(self) -> subprocess.Popen[str]:
        """A process group of its own, that only this test ends."""
        self.faults.mkdir(exist_ok=True)
        arguments = ["--model", str(self.model), "--out", self.out, *self.options]
        if self.address is not None:
            arguments += ["--address", self.address]
        return subprocess.Popen(
            [sys.executable, "-m", "hymotion_ray.cli", "render", str(self.prompts), *arguments],
            env={**os.environ, "HYMOTION_FAULTS": str(self.faults), **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, timeout: float = 240) -> tuple[int, str]:
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

    def wait_for(self, point: str, number: int, timeout: float = 120) -> None:
        """Return once so many arrived at a point."""
        end = time.monotonic() + timeout
        while len(self.arrivals(point)) < number:
            assert time.monotonic() < end, f"nobody came to {point} {number} times"
            time.sleep(0.02)

    def computed(self) -> Counter[str]:
        """How often each text was sampled."""
        return Counter(t for texts in self.arrivals("sample-done") for t in texts.split(" | "))


def manifest(out: Path | str) -> dict[tuple[str, int], dict[str, Any]]:
    """The manifest's rows by id and seed; an item with two rows is an error."""
    rows = [r for batch in read_batches(open_store(out)) for r in batch.to_pylist()]
    found = {(r["id"], r["seed"]): r for r in rows}
    assert len(found) == len(rows), "an item has more than one row"
    return found


def clips(out: Path | str) -> dict[str, bytes]:
    """The bytes of the clips, by name; nothing unfinished may lie beside them."""
    store = open_store(out)
    if store.root.startswith("/"):
        assert not list(Path(store.root).rglob("*.tmp"))
        assert not (Path(store.root) / ".work").exists()
    return {name: store.read_bytes(name) for name in store.list_files(suffix=".npz")}
