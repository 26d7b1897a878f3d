"""How fast a sampler is, measured from its own steps, and what waits elsewhere. Ray-free.

Speed depends on how full a batch is, so it is kept by rows computed; what a queue is divided by is
the best of them, as a queue fills batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
