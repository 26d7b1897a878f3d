"""Which pool will finish a request first, and whether it is taken on at all. Ray-free.

A pool's speed is what its replicas measured; its backlog is what this process has sent there and
not got back, or what the replicas last told, whichever is more. Work goes where the predicted end
is nearest, so a slow pool gets its share of the work and no more. A pool whose replicas fail, or
have not been heard of, is left alone until it answers again.

A refused request is told when to come back, and that time is kept for it: others that come later
are counted behind it. Without that, who comes by chance at the right moment would always win, and
Retry-After would say nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from hymotion_ray.engine.serve.work import Load

HEARD_S = 10.0
"""Seconds after which a replica that says nothing is left out."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_PROMISE_GRACE_S = 3.0
"""Seconds beyond the promised time that a place is kept, and that clients may come early."""
_PROMISED = 2.0
"""Times `max_wait_s` ahead that places are kept."""
_COLD_START_S = 60.0
_UNKNOWN_SPEED = 1e4


class Full(Exception):  # noqa: N818 - an answer, not a fault
    """There is more work than can be done in time; `retry_after_s` says when there will be room."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s)
        self.message, self.retry_after_s = message, retry_after_s


@dataclass
class PoolView:
    """What this process knows of a pool."""

    name: str
    may_be_cold: bool = False
    """Whether it may have no replica and start one when asked."""
    loads: dict[str, tuple[Load, float]] = field(default_factory=dict)
    """The last word of each replica, and when it came."""
    sent: dict[str, float] = field(default_factory=dict)
    """Units of my own work there that are still to be done, by work id."""
    failures: int = 0
    """Failures in a row."""
    paused_until: float = 0.0

    def hear(self, load: Load, now: float) -> None:
        """Note what a replica says of itself."""
        self.loads[load.replica] = (load, now)

    def take_back(self, units: float) -> None:
        """Note that work of mine there has ended early: there is room before a replica says so."""
        for replica, (load, at) in self.loads.items():
            part = min(units, load.backlog)
            self.loads[replica] = (replace(load, backlog=load.backlog - part), at)
            units -= part

    def forget_silent(self, now: float) -> None:
        """Leave out replicas that have not been heard of for a while."""
        self.loads = {r: (load, at) for r, (load, at) in self.loads.items() if now - at < HEARD_S}

    @property
    def num_replicas(self) -> int:
        """Replicas heard of."""
        return len(self.loads)

    @property
    def speed(self) -> float:
        """Units a second of all replicas together."""
        return sum(load.speed or _UNKNOWN_SPEED for load, _ in self.loads.values())

    def backlog(self, now: float) -> float:
        """Units to be done before new work."""
        told = sum(max(0.0, ld.backlog - ld.speed * (now - at)) for ld, at in self.loads.values())
        return max(told, sum(self.sent.values()))

    def usable(self, now: float) -> bool:
        """Whether work may be sent there."""
        return now >= self.paused_until and (self.num_replicas > 0 or self.may_be_cold)

    def wait_s(self, now: float) -> float:
        """Seconds until new work would be at the front."""
        if not self.num_replicas:
            return _COLD_START_S + sum(self.sent.values()) / _UNKNOWN_SPEED
        return self.backlog(now) / self.speed

    def finish_s(self, units: float, now: float) -> float:
        """Seconds until new work of `units` would be done: one replica does it."""
        one = self.speed / self.num_replicas if self.num_replicas else _UNKNOWN_SPEED
        return self.wait_s(now) + units / one


@dataclass
class _Promise:
    due: float
    units: float
    rank: float
    """When it was first to come back: who is refused again keeps its place."""


class Router:
    """The pools of one model."""

    def __init__(
        self,
        pools: Iterable[PoolView],
        max_wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pools = {pool.name: pool for pool in pools}
        self.max_wait_s = max_wait_s
        self._clock = clock
        self._promises: dict[str, _Promise] = {}
        self.coming: dict[str, float] = {}
        """Units of work that is taken on and not yet sent to a pool, by job id."""

    def admit(self, fingerprint: str, units: float) -> None:
        """Raise `Full` when a request of `units` could not end within `max_wait_s`.

        fingerprint: what a client's second try has in common with its first. Who is admitted
        stands in `coming` next.
        """
        now = self._clock()
        self._promises = {
            name: p for name, p in self._promises.items() if p.due + _PROMISE_GRACE_S > now
        }
        mine = self._promises.get(fingerprint)
        speed = sum(pool.speed for pool in self.pools.values() if pool.usable(now))
        if not speed:
            if any(pool.usable(now) for pool in self.pools.values()):
                return  # cold: a replica starts when asked
            raise Full("no sampler is ready", 5.0)
        waiting = sum(p.backlog(now) for p in self.pools.values() if p.usable(now))
        waiting += sum(self.coming.values())
        # An empty queue takes any request, however long it is by itself.
        over = (waiting + units) / speed - self.max_wait_s if waiting else 0.0
        if over <= 0 and (mine is not None or self._may_pass(waiting + units, speed, now)):
            self._promises.pop(fingerprint, None)
            return
        # Others who were told to come back stand before those who were not.
        ahead = sum(p.units for p in self._promises.values() if mine is None or p.rank < mine.rank)
        wait = max(over + ahead / speed, 0.1)
        # Further ahead nobody can say who will come back.
        if mine is not None or wait <= _PROMISED * self.max_wait_s:
            due = now + math.ceil(wait)
            rank = due if mine is None else mine.rank
            self._promises[fingerprint] = _Promise(due, units, rank)
        raise Full(f"the queue is full; there should be room in {wait:.1f} s", wait)

    def _may_pass(self, waiting: float, speed: float, now: float) -> bool:
        """Whether all promises can be kept with `waiting` units in the queue.

        They can where those promised before did not come, or work went faster than foretold: their
        places would stay empty.
        """
        for promise in sorted(self._promises.values(), key=lambda promise: promise.due):
            waiting += promise.units
            if waiting / speed > self.max_wait_s + max(0.0, promise.due - now):
                return False
        return True

    def choose(self, units: float, avoid: Iterable[str] = ()) -> PoolView | None:
        """The pool that would finish first; those in `avoid` only when there is no other."""
        now, avoided = self._clock(), set(avoid)
        usable = [pool for pool in self.pools.values() if pool.usable(now)]
        fresh = [pool for pool in usable if pool.name not in avoided] or usable
        return min(fresh, key=lambda pool: pool.finish_s(units, now), default=None)

    def wait_s(self) -> float | None:
        """Seconds until new work would be at the front of the best pool; None: no pool."""
        now = self._clock()
        waits = [pool.wait_s(now) for pool in self.pools.values() if pool.usable(now)]
        return min(waits, default=None)

    def failed(self, pool: PoolView) -> None:
        """A replica of the pool failed: leave the pool alone, longer with each failure in a row."""
        pool.failures += 1
        if len(self.pools) > 1 or pool.failures > 2:
            pause = min(_FIRST_PAUSE_S * 2 ** (pool.failures - 1), _LONGEST_PAUSE_S)
            pool.paused_until = self._clock() + pause

    def succeeded(self, pool: PoolView) -> None:
        """The pool did something right."""
        pool.failures = 0
