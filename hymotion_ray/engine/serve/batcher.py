"""Which clips take their next step together. Ray-free; the sampler comes as an object.

One step of one batch at a time: between steps clips join, finish, and leave when cancelled. A
batch holds clips of one shape (`flow.stepwise`), of any request, prompt, seed, step and guidance.
The batch with the nearest end goes first; the queue is fair between keys (`fair_queue.py`).

`submit` and `cancel` may come from any thread, `work` from one. A clip that cannot be computed
never fails its mates: after an error in a step every clip of that batch starts again alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from hymotion_ray.engine.serve.fair_queue import FairQueue
from hymotion_ray.engine.serve.pace import SpeedGauge, StepClock
from hymotion_ray.engine.serve.work import clip_units
from hymotion_ray.flow.sampler import Sampler
from hymotion_ray.flow.stepwise import CellRun, Clip, RunKind, kind_of
from hymotion_ray.flow.upload import fetch
from hymotion_ray.flow.velocity import GuidedVelocity

_MAX_ERROR = 300


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a clip ended: with a latent, or with an error code and text."""

    latent: Tensor | None = None
    code: str = ""
    error: str = ""


@dataclass(eq=False)
class Item:
    """A clip in the batcher."""

    clip: Clip
    key: str
    deadline: float
    """Monotonic time by which it should end."""
    on_end: Callable[[Item, Outcome], None]
    """Called in the thread that works, once, unless cancelled."""
    kind: RunKind = field(init=False)
    cost: float = field(init=False)
    notes: list[str] = field(default_factory=list)
    """What was done to it that a plain run would not do."""
    cell: str = ""
    submitted: float = 0.0
    started: float | None = None
    """Monotonic time of its first step."""
    cancelled: bool = False
    device_seconds: float = 0.0
    """Its share of the steps' time."""

    def __post_init__(self) -> None:
        clip = self.clip
        self.cost = clip_units(clip.num_frames, len(clip.steps), clip.sampling.guidance_scale)

    @property
    def units_left(self) -> float:
        """What is still to be computed of it."""
        return self.cost * self.clip.num_left / len(self.clip.steps)


@dataclass(eq=False)
class _Run:
    """A batch and whose clips are in it."""

    cells: CellRun
    items: list[Item]
    alone: bool = False
    """Whether nobody may join: its clip is under suspicion, or computed in another precision."""

    @property
    def deadline(self) -> float:
        """The nearest end of its clips."""
        return min(item.deadline for item in self.items)


@dataclass(frozen=True)
class _Step:
    """A step, as it was when it began."""

    items: tuple[Item, ...]
    rows: int
    frames: int
    started: int
    run: _Run
    ended: list[tuple[Item, Tensor]] = field(default_factory=list)
    """Clips whose last step it was; their latents are there when the step has been waited for."""

    @property
    def units(self) -> float:
        """What it computes of its clips."""
        return sum(item.cost / len(item.clip.steps) for item in self.items)


@dataclass(frozen=True)
class StepSeen:
    """What one step did, for the metrics."""

    seconds: float
    rows: int
    live: int
    frames: int
    frames_asked: int
    """Frames of the live clips: the rest of rows x frames is padding."""
    started: int
    """Clips whose first step it was."""


@dataclass(kw_only=True)
class BatchRules:
    """How batches are made."""

    exact: bool = False
    """Full cells only, each clip in its own: the bits of `render` with this many rows."""
    max_padding: float = 0.0
    """Share of padding up to which a clip joins a longer batch."""
    max_live: int = 0
    """Clips in batches at once; 0: twice a cell's rows."""
    least_step_s: float = 0.0
    """Seconds a step takes at least, to rehearse slower machines."""


class Batcher:
    """Clips in, latents out, one step at a time."""

    def __init__(
        self,
        sampler: Sampler,
        rules: BatchRules,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_step: Callable[[StepSeen], None] = lambda seen: None,
        new_run: Callable[..., CellRun] = CellRun,
    ) -> None:
        """`new_run(sampler, kind, full_rows=)` makes a batch; the one of a group runs on all."""
        self._new_run = new_run
        self.sampler, self.rules, self.gauge = sampler, rules, SpeedGauge()
        self._clock, self._on_step = clock, on_step
        self._steps = StepClock[_Step](sampler.network.device, clock)
        self._lock = threading.Lock()
        self._queue: FairQueue[Item] = FairQueue()
        self._runs: list[_Run] = []
        self._solo: list[tuple[Item, Sampler]] = []
        self._float32: Sampler | None = None
        self._rows = sampler.grid.rows
        self._max_live = rules.max_live or 2 * sampler.grid.rows
        self.steps_taken = 0
        self.num_out_of_memory = 0

    # --- from any thread ---

    def submit(self, items: Sequence[Item]) -> None:
        """Queue clips."""
        now = self._clock()
        for item in items:
            item.kind, item.submitted = kind_of(item.clip, self.sampler), now
        with self._lock:
            for item in items:
                self._queue.push(item)

    def cancel(self, items: Sequence[Item]) -> None:
        """Take clips out: those that wait at once, those in a batch before its next step."""
        with self._lock:
            for item in items:
                item.cancelled = True
                self._queue.remove(item)

    def counts(self) -> tuple[int, int, float]:
        """(clips in batches, clips that wait, units of both that are still to be computed)."""
        with self._lock:
            live = [i for run in self._runs for i in run.items if not i.cancelled]
            waiting = [*self._queue, *(item for item, _ in self._solo)]
            units = sum(i.units_left for i in live) + sum(i.cost for i in waiting)
            return len(live), len(waiting), units

    # --- from the one thread that works ---

    def work(self) -> bool:
        """Take one step of the most urgent batch; False when there is nothing to do."""
        run = self._next_run()
        if run is None:
            self._count(self._steps.rest())
            return False
        started = [item for item in run.items if item.started is None]
        before = self._clock()
        for item in started:
            item.started = before
        rows, frames = run.cells.num_rows, run.cells.kind.cell.frames
        step = _Step(tuple(run.items), rows, frames, len(started), run)
        self._steps.begin()
        try:
            ended = run.cells.step()
        except torch.OutOfMemoryError:
            self._halve(run)
            return True
        except Exception as error:  # noqa: BLE001 - whatever it is, it is one clip's, not all's
            self._isolate(run, error)
            return True
        if self.rules.least_step_s:
            time.sleep(max(0.0, self.rules.least_step_s - (self._clock() - before)))
        for clip, latent in ended:
            item = next(i for i in run.items if i.clip is clip)
            run.items.remove(item)
            step.ended.append((item, fetch(latent)))
        self._count(self._steps.end(step))
        return True

    def _count(self, ended: Sequence[tuple[_Step, float]]) -> None:
        """Take note of steps that have ended and the seconds they took; hand their clips over."""
        for step, seconds in ended:
            live = len(step.items)
            self.steps_taken += 1
            self.gauge.saw(step.rows, step.units, seconds, self._clock())
            asked = sum(item.clip.num_frames for item in step.items)
            self._on_step(StepSeen(seconds, step.rows, live, step.frames, asked, step.started))
            for item in step.items:
                item.device_seconds += seconds / live
            for item, latent in step.ended:
                self._finish(item, latent, step.run)

    def _next_run(self) -> _Run | None:
        with self._lock:
            for run in self._runs:
                dead = [item for item in run.items if item.cancelled]
                if dead:
                    run.items = [item for item in run.items if not item.cancelled]
                    run.cells.drop([item.clip for item in dead])
            self._runs = [run for run in self._runs if run.items]
            self._solo = [(item, s) for item, s in self._solo if not item.cancelled]
            joiners = self._refill()
        for run, items in joiners:
            try:
                run.cells.add([item.clip for item in items])
            except torch.OutOfMemoryError:
                self._halve(run)
        runs = [run for run in self._runs if run.items]
        return min(runs, key=lambda run: run.deadline, default=None)

    def _refill(self) -> list[tuple[_Run, list[Item]]]:
        """Who joins which batch now."""
        joiners: list[tuple[_Run, list[Item]]] = []
        while self._solo:
            item, sampler = self._solo.pop()
            run = self._open(item, sampler, alone=True)
            joiners.append((run, [item]))
        num_live = sum(len(run.items) for run in self._runs)
        # A later clip may join a batch before an earlier one that needs another, but it leaves
        # places for those that are next in line, so that no shape waits for ever.
        reserve = max(1, self._rows // 2)
        for run in sorted(self._runs, key=lambda run: run.deadline):
            if run.alone:
                continue
            joined = self._mates(run, self._max_live - reserve - num_live)
            num_live += len(joined)
            run.items += joined
            if joined:
                joiners.append((run, joined))
        while num_live < self._max_live:
            first = self._queue.pop(self._has_place)
            if first is None:
                break
            num_live += 1
            found = self._with_room_for(first)
            if found is not None:
                found.items.append(first)
                joiners.append((found, [first]))
                continue
            run = self._open(first, self.sampler)
            run.items += self._mates(run, self._max_live - num_live)
            num_live += len(run.items) - 1
            joiners.append((run, list(run.items)))
        return joiners

    def _has_place(self, kind: Hashable) -> bool:
        """Whether no batch of this very shape is full: a second one would leave both half empty."""
        assert isinstance(kind, RunKind)
        for run in self._runs:
            mine = run.cells.kind
            same = replace(kind, cell=replace(kind.cell, rows=mine.cell.rows)) == mine
            if same and not run.alone and len(run.items) >= mine.cell.rows:
                return False
        return True

    def _with_room_for(self, item: Item) -> _Run | None:
        for run in self._runs:
            is_open = not run.alone and len(run.items) < run.cells.kind.cell.rows
            if is_open and self._may_join(run, item.kind):
                return run
        return None

    def _mates(self, run: _Run, most: int) -> list[Item]:
        """At most so many clips from the queue that may join a batch, in their order."""
        mates: list[Item] = []
        room = run.cells.kind.cell.rows - len(run.items)
        while len(mates) < min(most, room):
            item = self._queue.pop(partial(self._may_join, run))
            if item is None:
                break
            mates.append(item)
        return mates

    def _open(self, item: Item, sampler: Sampler, alone: bool = False) -> _Run:
        kind = replace(item.kind, cell=replace(item.kind.cell, rows=self._rows))
        cells = self._new_run(sampler, kind, full_rows=self.rules.exact)
        run = _Run(cells, [item], alone)
        self._runs.append(run)
        return run

    def _may_join(self, run: _Run, kind: Hashable) -> bool:
        assert isinstance(kind, RunKind)
        mine = run.cells.kind
        same = replace(kind, cell=replace(kind.cell, rows=mine.cell.rows))
        if same == mine:
            return True
        if self.rules.exact or not mine.holds(same):
            return False
        waste = mine.cell.frames / kind.cell.frames - 1.0
        return waste <= self.rules.max_padding

    def _finish(self, item: Item, latent: Tensor, run: _Run) -> None:
        item.cell = str(run.cells.kind.cell)
        if not run.cells.full_rows:
            item.cell = f"up to {item.cell}"
        if self._rows != self.sampler.grid.rows:
            item.notes.append(
                f"rows {self._rows} instead of {self.sampler.grid.rows} after out of memory"
            )
        if bool(torch.isfinite(latent).all()):
            self._end(item, Outcome(latent=latent))
        elif run.cells.sampler is self._float32:
            text = "the sampled motion is not finite, in float32 too; the weights are suspect"
            self._end(item, Outcome(code="not_finite", error=text))
        else:
            if self._float32 is None:
                self._float32 = self.sampler.in_float32()
            item.notes.append("float32 after not finite")
            self._again([item], self._float32)

    def _halve(self, run: _Run) -> None:
        """After out of memory: all start again, in cells of half the rows from now on."""
        self._drop(run)
        self.num_out_of_memory += 1
        if torch.cuda.is_available():
            # Captured steps of the sizes of before hold memory that smaller ones need.
            self.sampler.velocity = GuidedVelocity(self.sampler.network)
            self.sampler.shelves.clear()
            torch.cuda.empty_cache()
        if self._rows == 1:
            text = "one clip alone does not fit this device; ask for a shorter one"
            for item in run.items:
                self._end(item, Outcome(code="out_of_memory", error=text))
            return
        self._rows //= 2
        self._max_live = max(2, self._max_live // 2)
        with self._lock:
            for item in run.items:
                item.clip = fresh(item.clip)
                self._queue.push(item)

    def _isolate(self, run: _Run, error: Exception) -> None:
        """After an error: a clip alone is at fault; of several each starts again by itself."""
        self._drop(run)
        if len(run.items) == 1:
            text = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
            self._end(run.items[0], Outcome(code="sampling_failed", error=text))
            return
        for item in run.items:
            item.notes.append("again alone, after an error in its batch")
        self._again(run.items, run.cells.sampler)

    def _again(self, items: Sequence[Item], sampler: Sampler) -> None:
        for item in items:
            item.clip = fresh(item.clip)
        with self._lock:
            self._solo += [(item, sampler) for item in items]

    def _drop(self, run: _Run) -> None:
        with self._lock:
            self._runs = [other for other in self._runs if other is not run]

    def _end(self, item: Item, outcome: Outcome) -> None:
        if not item.cancelled:
            item.on_end(item, outcome)


def fresh(clip: Clip) -> Clip:
    """The same clip at its first step."""
    return replace(clip)
