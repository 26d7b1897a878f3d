"""A queue that is fair between keys and serves the nearest end first. Ray-free; knows no clock.

Each key has a virtual time: the cost served to it so far. The key with the least is next (after
start-time fair queueing, Goyal, Vin & Cheng 1996, with equal weights), and of a key's items the one
with the nearest end. Items of one kind are kept together, so that a batch finds its mates at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What a queue needs to know of an item."""

    @property
    def key(self) -> str:
        """Whose it is."""

    @property
    def kind(self) -> Hashable:
        """Which items it may share a batch with."""

    @property
    def deadline(self) -> float:
        """When it should end."""

    @property
    def cost(self) -> float:
        """What it takes."""


T = TypeVar("T", bound=Queued)


@dataclass
class _Lane(Generic[T]):
    """The items of one key, by kind, each list sorted by its end."""

    time: float
    kinds: dict[Hashable, list[tuple[float, int, T]]] = field(default_factory=dict)

    def heads(self, accept: Callable[[Hashable], bool]) -> list[tuple[float, int, Hashable]]:
        """(end, number, kind) of the first item of every accepted kind."""
        return [(rows[0][0], rows[0][1], kind) for kind, rows in self.kinds.items() if accept(kind)]


class FairQueue(Generic[T]):
    """Not safe from several threads."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[T]] = {}
        self._times: dict[str, float] = {}
        self._number = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        for lane in self._lanes.values():
            for rows in lane.kinds.values():
                yield from (item for _, _, item in rows)

    @property
    def keys(self) -> list[str]:
        """Keys that have something waiting."""
        return list(self._lanes)

    def push(self, item: T) -> None:
        """Add an item."""
        lane = self._lanes.get(item.key)
        if lane is None:
            # A key that comes back gets no credit for the time it did not ask.
            least = min((other.time for other in self._lanes.values()), default=0.0)
            lane = _Lane(max(self._times.pop(item.key, least), least))
            self._lanes[item.key] = lane
        self._number += 1
        bisect.insort(
            lane.kinds.setdefault(item.kind, []),
            (item.deadline, self._number, item),
            key=lambda row: row[:2],
        )
        self._size += 1

    def pop(self, accept: Callable[[Hashable], bool] = lambda kind: True) -> T | None:
        """The next item of an accepted kind, charged to its key; None when there is none."""
        for lane in sorted(self._lanes.values(), key=lambda lane: lane.time):
            heads = lane.heads(accept)
            if heads:
                kind = min(heads, key=lambda head: head[:2])[2]
                return self._take(lane, kind)
        return None

    def _take(self, lane: _Lane[T], kind: Hashable) -> T:
        item = lane.kinds[kind][0][2]
        lane.time += item.cost
        self._remove(item.key, kind, 0)
        return item

    def remove(self, item: T) -> bool:
        """Take an item out; whether it was there."""
        lane = self._lanes.get(item.key)
        rows = lane.kinds.get(item.kind, []) if lane else []
        for place, (_, _, held) in enumerate(rows):
            if held is item:
                self._remove(item.key, item.kind, place)
                return True
        return False

    def _remove(self, key: str, kind: Hashable, place: int) -> None:
        lane = self._lanes[key]
        rows = lane.kinds[kind]
        del rows[place]
        self._size -= 1
        if not rows:
            del lane.kinds[kind]
        if not lane.kinds:
            del self._lanes[key]
            self._times[key] = lane.time
            if len(self._times) > 10_000:  # keys that have long been quiet
                self._times.pop(next(iter(self._times)))
