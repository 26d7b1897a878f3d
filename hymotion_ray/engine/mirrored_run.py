"""A stepwise batch that several processes compute together: what the leader does, all do.

The leader tells the followers each change of a batch before it makes it itself: they hold the same
clips at the same steps, and meet it in the collectives of each step. Knows no queue and no HTTP.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from hymotion_ray.flow.conditions import Conditions
from hymotion_ray.flow.sampler import Sampler
from hymotion_ray.flow.stepwise import CellRun, Clip, RunKind

_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a batch, as it is told to the followers."""

    run: int
    """The batch's number."""
    what: Literal["open", "add", "drop", "step", "close"]
    kind: RunKind | None = None
    full_rows: bool = True
    float32: bool = False
    clips: tuple[tuple[int, Clip], ...] = ()
    """Clips that join, their conditions on the CPU, each with its number."""
    numbers: tuple[int, ...] = ()
    """Of clips that leave."""


class MirroredRun(CellRun):
    """The leader's side of a batch."""

    def __init__(
        self,
        sampler: Sampler,
        kind: RunKind,
        *,
        full_rows: bool,
        float32: bool,
        tell: Callable[[Change], None],
        lost: Callable[[Exception], Exception],
    ) -> None:
        """`tell` hands a change to all followers; `lost` gives the group up after an error."""
        self._number, self._tell, self._lost = next(_numbers), tell, lost
        self._clip_numbers: dict[int, int] = {}
        tell(Change(run=self._number, what="open", kind=kind, full_rows=full_rows, float32=float32))
        super().__init__(sampler, kind, full_rows=full_rows)

    def __del__(self) -> None:
        self._tell(Change(run=self._number, what="close"))

    def add(self, clips: Sequence[Clip]) -> None:
        """As `CellRun.add`, on all processes."""
        told = []
        for clip in clips:
            self._clip_numbers[id(clip)] = next(_numbers)
            told.append((self._clip_numbers[id(clip)], on_device(clip, torch.device("cpu"))))
        self._tell(Change(run=self._number, what="add", clips=tuple(told)))
        self._or_lost(lambda: super(MirroredRun, self).add(clips))

    def drop(self, clips: Sequence[Clip]) -> None:
        """As `CellRun.drop`, on all processes; clips that reached the end leave by themselves."""
        asked = [c for c in clips if c.num_left]
        if asked:
            numbers = tuple(self._clip_numbers[id(clip)] for clip in asked)
            self._tell(Change(run=self._number, what="drop", numbers=numbers))
        for clip in clips:
            self._clip_numbers.pop(id(clip), None)
        self._or_lost(lambda: super(MirroredRun, self).drop(clips))

    def step(self) -> list[tuple[Clip, Tensor]]:
        """As `CellRun.step`, on all processes."""
        self._tell(Change(run=self._number, what="step"))
        ended: list[tuple[Clip, Tensor]] = []
        self._or_lost(lambda: ended.extend(super(MirroredRun, self).step()))
        return ended

    def _or_lost(self, work: Callable[[], None]) -> None:
        """Do `work`; an error of one process alone leaves the others waiting."""
        try:
            work()
        except RuntimeError as error:  # what collectives raise; out of memory among them
            raise self._lost(error) from error


class Mirror:
    """A follower's side of all batches."""

    def __init__(self, sampler_in: Callable[[bool], Sampler]) -> None:
        """`sampler_in(float32)` is this process's sampler."""
        self._sampler_in = sampler_in
        self._runs: dict[int, CellRun] = {}
        self._clips: dict[int, Clip] = {}

    def follow(self, change: Change) -> None:
        """Make the change that the leader makes."""
        if change.what == "open":
            assert change.kind is not None, "a batch has a kind"
            sampler = self._sampler_in(change.float32)
            self._runs[change.run] = CellRun(sampler, change.kind, full_rows=change.full_rows)
            return
        run = self._runs[change.run]
        if change.what == "add":
            device = run.sampler.network.device
            new = {number: on_device(clip, device) for number, clip in change.clips}
            self._clips |= new
            run.add(list(new.values()))
        elif change.what == "drop":
            run.drop([self._clips.pop(number) for number in change.numbers])
        elif change.what == "step":
            run.step()
            self._clips = {n: clip for n, clip in self._clips.items() if clip.num_left}
        else:
            del self._runs[change.run]


def on_device(clip: Clip, device: torch.device) -> Clip:
    """The clip at its first step, its condition on a device."""
    c = clip.condition
    moved = Conditions(c.context.to(device), c.vector.to(device), c.length.to(device))
    return replace(clip, condition=moved)
