"""Counts, rates and the time left of a long job, on a terminal or in a log. Ray-free."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_WINDOW_S = 120.0
_RARELY_AFTER = ((3600.0, 60.0), (300.0, 20.0))
"""Seconds into a job after which lines come at least so many seconds apart."""


@dataclass
class JobProgress:
    """What is done of `total` items, and how fast of late. Use as a context manager."""

    total: int
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    log_every_s: float = 5.0
    """Seconds between lines where the stream is no terminal."""
    title: str = "render"
    """What the job is, at the front of a line."""
    unit: str = "clips"
    """What is counted, as in `12/40 clips, 3.2 clips/s`."""
    note: str = ""
    """What else is worth a word at the moment, such as a loss."""
    done: int = 0
    failed: int = 0
    by_device: Counter[str] = field(default_factory=Counter)
    _start: float = field(default_factory=time.monotonic)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _last_line: float = 0.0
    _bar: Progress | None = None
    _task: TaskID | None = None

    def __enter__(self) -> JobProgress:
        if self.stream.isatty():
            self._bar = Progress(
                TextColumn(self.title),
                BarColumn(),
                TextColumn("{task.fields[words]}"),
                TimeElapsedColumn(),
                console=Console(file=self.stream),
            )
            self._task = self._bar.add_task(self.title, total=self.total, words=self.words())
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        else:
            self._line()

    def update(self, num_done: int, num_failed: int, device: str) -> None:
        """Count finished items and show them when it is time."""
        self.done += num_done
        self.failed += num_failed
        if num_done and device:
            self.by_device[device] += num_done
        now = time.monotonic()
        self._recent.append((now, self.done))
        while self._recent and now - self._recent[0][0] > _WINDOW_S:
            self._recent.popleft()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done + self.failed, words=self.words())
        elif now - self._last_line >= self._line_every_s:
            self._line()

    @property
    def _line_every_s(self) -> float:
        rarely = [every for after, every in _RARELY_AFTER if self.seconds > after]
        return max(self.log_every_s, *rarely[:1], 0.0)

    @property
    def seconds(self) -> float:
        """Seconds since the job began."""
        return time.monotonic() - self._start

    @property
    def rate(self) -> float:
        """Items a second over the last two minutes; 0 before the second report."""
        if len(self._recent) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._recent[0], self._recent[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def words(self) -> str:
        """`12/40 clips, 1 failed, 3.2 clips/s, 9 s left`."""
        parts = [f"{self.done}/{self.total} {self.unit}"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.rate:
            left = (self.total - self.done - self.failed) / self.rate
            parts += [f"{self.rate:.1f} {self.unit}/s", f"{duration_words(left)} left"]
        if len(self.by_device) > 1:
            shares = [f"{n} {100 * k / self.done:.0f} %" for n, k in self.by_device.most_common()]
            parts.append(" + ".join(shares))
        if self.note:
            parts.append(self.note)
        return ", ".join(parts)

    def _line(self) -> None:
        self._last_line = time.monotonic()
        self.stream.write(f"{self.title}: {self.words()}, {duration_words(self.seconds)} so far\n")
        self.stream.flush()


def duration_words(seconds: float) -> str:
    """`9 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
