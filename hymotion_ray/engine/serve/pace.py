"""How fast a sampler is, measured from its own steps, and what waits elsewhere. Ray-free.

Speed depends on how full a batch is, so it is kept by rows computed; what a queue is divided by is
the best of them, as a queue fills batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch

T = TypeVar("T")
_KEEP = 0.9
"""Of the running mean, at each new step of the same number of rows."""
_STALE_S = 60.0
_TOLD_S = 10.0
"""Seconds after which what an HTTP process told counts no more."""


@dataclass
class _Mean:
    speed: float
    at: float


@dataclass
class SpeedGauge:
    """Units a second, by rows a step computed."""

    _means: dict[int, _Mean] = field(default_factory=dict)

    def saw(self, rows: int, units: float, seconds: float, now: float) -> None:
        """A step of `rows` rows did `units` in `seconds`, ending at monotonic time `now`."""
        if units <= 0 or seconds <= 0:
            return
        speed = units / seconds
        mean = self._means.get(rows)
        if mean is None:
            self._means[rows] = _Mean(speed, now)
        else:
            # Means of times, not of speeds: two steps of 1 s and 3 s take 4 s together.
            mean.speed = 1.0 / (_KEEP / mean.speed + (1.0 - _KEEP) / speed)
            mean.at = now

    @property
    def speed(self) -> float:
        """Units a second with full batches; 0 before the first step."""
        if not self._means:
            return 0.0
        newest = max(mean.at for mean in self._means.values())
        return max(m.speed for m in self._means.values() if newest - m.at <= _STALE_S)


class _Open(NamedTuple, Generic[T]):
    """A step that a GPU has not ended yet."""

    step: T
    began: torch.cuda.Event
    ended: torch.cuda.Event


class StepClock(Generic[T]):
    """Times steps, and keeps the host at most one step ahead of a GPU.

    A step only queues its work there. Without a bound the host would queue a clip to its end at
    once: nobody could join or leave until then, and its own time would say nothing of the GPU's.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float]) -> None:
        self._on_gpu, self._clock = device.type == "cuda", clock
        self._began = 0.0
        self._mark: torch.cuda.Event | None = None
        self._open: _Open[T] | None = None

    def begin(self) -> None:
        """A step begins."""
        self._began = self._clock()
        self._mark = self._event() if self._on_gpu else None

    def end(self, step: T) -> list[tuple[T, float]]:
        """The step that began is computed, or queued: those that have ended now, with seconds."""
        if self._mark is None:
            return [(step, self._clock() - self._began)]
        ended = self.rest()
        self._open = _Open(step, self._mark, self._event())
        return ended

    def rest(self) -> list[tuple[T, float]]:
        """Wait for the step that is open, if any."""
        if self._open is None:
            return []
        step, began, ended = self._open
        self._open = None
        ended.synchronize()
        return [(step, began.elapsed_time(ended) / 1000)]

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@dataclass
class WaitingElsewhere:
    """Seconds of work that HTTP processes hold back until samplers have room, as they told."""

    _told: dict[str, tuple[float, float]] = field(default_factory=dict)

    def hear(self, teller: str, seconds: float, now: float) -> None:
        """Process `teller` holds work that all samplers together would take `seconds` for."""
        self._told[teller] = (seconds, now)

    def seconds(self, now: float) -> float:
        """Of all processes that were heard of lately."""
        self._told = {t: (s, at) for t, (s, at) in self._told.items() if now - at < _TOLD_S}
        return sum(seconds for seconds, _ in self._told.values())
