"""The file metrics.jsonl: one line a report, whole or absent, and never two lines of one step.

Knows how a killed run's last line is cleared away and how a resumed run goes on behind its
checkpoint. Does not know what the numbers mean. Ray-free.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import write_bytes

METRICS_FILE = "metrics.jsonl"


class MetricsFile:
    """Lines {"step": n, name: number, ...} at `path`, in the order of their steps."""

    def __init__(self, path: Path) -> None:
        """Nothing is written before the first `append`."""
        self.path = path
        self._last: int | None = None

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """One line, in one write; lines of this step and later ones, of a run before, go first.

        Numbers that are not finite are written as null, which JSON has instead.
        `OutputError` when the file cannot be written.
        """
        if self._last is None or step <= self._last:
            self.rewind(step - 1)
        row = {name: _finite(value) for name, value in values.items()}
        line = json.dumps({"step": step, **row}, allow_nan=False) + "\n"
        with self._writing():
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(file, line.encode())
            finally:
                os.close(file)
        self._last = step

    def rewind(self, step: int) -> None:
        """Drop lines after `step`, and one that a kill cut in two."""
        with self._writing():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                content = self.path.read_bytes()
                kept = b"".join(line for line, at in _lines(content) if at <= step)
                if kept != content:
                    write_bytes(self.path, kept)
        self._last = step

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self.path} cannot be written ({error}); free some space or check its rights,"
                " then run the same command again"
            ) from error


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """The rows of a metrics file, without a line cut in two; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line, _ in _lines(path.read_bytes())]


def _lines(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Whole lines with their steps."""
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line)
            step = int(row["step"])
        except (ValueError, KeyError, TypeError):
            continue
        if line.endswith(b"\n"):
            yield line, step


def _finite(value: float) -> float | None:
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if isinstance(value, int) else number
