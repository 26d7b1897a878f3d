"""Stand-in stages for tests of the engine: they carry words about instead of motions."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from hymotion_ray.engine.nodes import Node
from hymotion_ray.engine.pool import Step
from hymotion_ray.engine.stage import Chunk


def make_chunks(num_items: int, size: int) -> list[Chunk]:
    """Chunks of `size` items whose texts are `<0>`, `<1>` ..."""
    items = pa.table(
        {
            "text": [f"<{n}>" for n in range(num_items)],
            "error_code": pa.array([None] * num_items, pa.string()),
            "error": pa.array([None] * num_items, pa.string()),
        }
    )
    return [
        Chunk(key=f"chunk-{start}", items=items.slice(start, size))
        for start in range(0, num_items, size)
    ]


@dataclass
class Pass:
    """Hands chunks on, after a while."""

    name: str = "pass"
    seconds: float = 0.0

    def setup(self) -> None:
        """Nothing."""

    def __call__(self, chunk: Chunk) -> Chunk:
        """The chunk as it came."""
        time.sleep(self.seconds)
        return chunk


@dataclass
class Write:
    """Writes one file an item, as an export would: named by the item, the same again and again."""

    folder: str
    name: str = "write"
    seconds: float = 0.0

    def setup(self) -> None:
        """Nothing."""

    def __call__(self, chunk: Chunk) -> Chunk:
        """Write `done` or the error's code for each item; says which process did."""
        time.sleep(self.seconds)
        for text, code in zip(chunk.column("text"), chunk.column("error_code"), strict=True):
            (Path(self.folder) / text.strip("<>")).write_text(code or "done")
        process = pa.array([str(os.getpid())] * chunk.items.num_rows)
        return chunk.with_columns({"process": process})


def fixed(number: int):
    """A pool of always so many."""

    def size(nodes: list[Node]) -> tuple[int, int]:
        return number, number

    return size


def two_steps(folder: Path, seconds: float = 0.0, workers: int = 1) -> list[Step]:
    """A step that passes chunks on and one that writes."""
    return [
        Step(name="first", stages=(Pass(),), size=fixed(1)),
        Step(name="work", stages=(Write(str(folder), seconds=seconds),), size=fixed(workers)),
    ]


def one_step(folder: Path, workers: int = 1) -> list[Step]:
    """One step of two stages, whose processes hold one chunk at a time."""
    return [Step(name="work", stages=(Pass(), Write(str(folder))), size=fixed(workers), depth=1)]
