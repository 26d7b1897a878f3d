"""Render commands as processes of their own, to be killed; and what they leave, to be compared."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driver_process import DriverProcess

from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.formats.atomic import open_store


@dataclass
class Command(DriverProcess):
    """One render command line; `start` it as often as it is killed."""

    prompts: Path
    model: Path
    out: str
    faults: Path
    address: str | None = None
    """Ray to join; None: one of its own."""
    options: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """The render command."""
        found = ["render", str(self.prompts), "--model", str(self.model), "--out", self.out]
        if self.address is not None:
            found += ["--address", self.address]
        return [*found, *self.options]

    @property
    def variables(self) -> dict[str, str]:
        """As given."""
        return self.environment

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
