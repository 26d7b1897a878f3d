"""Sampling one step at a time: clips join and leave a batch between steps, each at its own step.

A clip's bits are those of `Sampler.sample` in the same cell at the same number of rows: the network
computes every row by itself, and each row's times and factors are the same numbers. Knows no
queue: `engine.serve.batcher` decides who joins.

Shapes: B rows, L frames.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from hymotion_ray.config.grid import GridCell
from hymotion_ray.config.sampling import Method, SamplingConfig
from hymotion_ray.flow.conditions import Conditions, prepare_conditions
from hymotion_ray.flow.guidance import keeps_apart, needs_null, sampling_steps
from hymotion_ray.flow.path import noise
from hymotion_ray.flow.plan import Row, check_rows
from hymotion_ray.flow.sampler import Sampler
from hymotion_ray.flow.solvers import Step, advance, row_steps, solver_steps
from hymotion_ray.flow.text_shelf import NULL, Branch, TextShelf
from hymotion_ray.flow.upload import send, upload


@dataclass(eq=False)
class Clip:
    """One clip on its way from noise to data."""

    prompt: Hashable
    """Name of its prompt: clips of one name have the same condition."""
    condition: Conditions
    """One prompt, from `prepare_clip`."""
    num_tokens: int
    """Text tokens of its prompt, at least one."""
    num_frames: int
    seed: int
    sampling: SamplingConfig
    steps: list[Step] = field(init=False)
    num_done: int = field(default=0, init=False)
    """Steps done."""

    def __post_init__(self) -> None:
        self.steps = sampling_steps(self.sampling)

    @property
    def guided(self) -> bool:
        """Whether the null branch is computed for it."""
        return needs_null(self.sampling.guidance_scale)

    @property
    def num_left(self) -> int:
        """Steps left."""
        return len(self.steps) - self.num_done


def prepare_clip(
    sampler: Sampler,
    prompt: Hashable,
    context: Tensor,
    vector: Tensor,
    num_frames: int,
    seed: int,
    sampling: SamplingConfig,
) -> Clip:
    """A clip at its first step, its condition on the sampler's device.

    context (n, C) without padding, vector (V,). Raises `ConfigError` for what `Sampler.sample`
    would refuse.
    """
    length = torch.tensor([len(context)])
    condition = prepare_conditions(
        context[None], vector[None, None], length, sampler.null, sampler.network
    )
    check_rows([Row(0, num_frames, seed)], 1, sampler.network.train_frames)
    num_tokens = max(1, len(context))
    sampler.grid.cell(num_frames, num_tokens, sampler.network.train_frames)
    return Clip(prompt, condition, num_tokens, num_frames, seed, sampling)


@dataclass(frozen=True)
class RunKind:
    """What all clips of a batch have in common."""

    cell: GridCell
    guided: bool
    method: Method
    apart: bool
    """Whether branches are calls of their own, as modes need that leave the null branch out."""

    def holds(self, other: RunKind) -> bool:
        """Whether clips of kind `other` fit into a batch of this kind."""
        mine, theirs = self.cell, other.cell
        fits = theirs.frames <= mine.frames and theirs.tokens <= mine.tokens
        return fits and replace(self, cell=theirs) == other


def kind_of(clip: Clip, sampler: Sampler) -> RunKind:
    """The batch that a clip belongs to by its own length and token count."""
    cell = sampler.grid.cell(clip.num_frames, clip.num_tokens, sampler.network.train_frames)
    return RunKind(cell, clip.guided, clip.sampling.method, keeps_apart(clip.sampling))


class CellRun:
    """A batch of at most `kind.cell.rows` clips that take their steps together."""

    def __init__(self, sampler: Sampler, kind: RunKind, *, full_rows: bool = True) -> None:
        """full_rows: always compute all rows of the cell, so that bits do not depend on mates.

        Without, the next power of two of the clips there are: cheaper, equal up to rounding.
        """
        self.kind, self.clips = kind, list[Clip]()
        self.sampler, self.full_rows = sampler, full_rows
        self._shelf: TextShelf | None = None
        self._x = torch.empty(0)
        self._direction = torch.empty(0)  # of guidance, row by row, with branches kept apart
        self._branches: list[tuple[Branch, Branch | None]] = []

    @property
    def room(self) -> int:
        """Clips that may still join."""
        return self.kind.cell.rows - len(self.clips)

    @property
    def num_rows(self) -> int:
        """Rows that a step computes, idle ones included."""
        if self.full_rows:
            return self.kind.cell.rows
        return min(self.kind.cell.rows, 1 << max(0, len(self.clips) - 1).bit_length())

    def add(self, clips: Sequence[Clip]) -> None:
        """Let clips join, at whatever step each of them is to start: the first."""
        assert len(clips) <= self.room, "the batch has no room"
        frames, window = self.kind.cell.frames, self.sampler.network.train_frames
        new = [noise(clip.seed, window)[:frames] for clip in clips]
        device = self.sampler.network.device
        num_live = len(self.clips)
        live = [*self._x[:num_live], *(send(x, device) for x in new)]
        kept = [*self._direction[:num_live], *map(torch.zeros_like, live[num_live:])]
        self._set([*self.clips, *clips], live, kept)

    def drop(self, clips: Sequence[Clip]) -> None:
        """Let clips leave, finished or not."""
        gone = {id(clip) for clip in clips}
        places = [i for i, clip in enumerate(self.clips) if id(clip) not in gone]
        live, kept = ([held[i] for i in places] for held in (self._x, self._direction))
        self._set([self.clips[i] for i in places], live, kept)

    @torch.inference_mode()
    def _set(self, clips: list[Clip], live: list[Tensor], kept: list[Tensor]) -> None:
        held = {id(clip): own for clip, own in zip(self.clips, self._branches, strict=False)}
        self.clips = clips
        if not clips:
            self._x, self._direction, self._branches = torch.empty(0), torch.empty(0), []
            if self._shelf is not None:
                self.sampler.shelves.give(self.kind, self._shelf)
                self._shelf = None
            return
        idle = self.num_rows - len(clips)
        members = [*clips, *[clips[0]] * idle]
        self._x = torch.stack([*live, *[live[0]] * idle])
        self._direction = torch.stack([*kept, *[kept[0]] * idle])
        for clip in clips:
            if id(clip) not in held:
                held[id(clip)] = self._branches_of(clip)
        self._branches = [held[id(clip)] for clip in members]
        device = self.sampler.network.device
        num_frames = upload([clip.num_frames for clip in members], torch.int64, device)
        num_tokens = torch.cat([clip.condition.length for clip in members])
        scales = [clip.sampling.guidance_scale for clip in members]
        self._scale = upload(scales, torch.float32, device)[:, None, None]
        if self.kind.guided and not self.kind.apart:
            num_frames, num_tokens = num_frames.repeat(2), num_tokens.repeat(2)
        cell = self.kind.cell
        self._layout = self.sampler.network.motion_layout(
            num_frames, num_tokens, cell.frames, cell.tokens
        )
        for clip in clips:
            if clip.num_done == 0 and self.kind.guided and self.sampler.enable_ctxt_null_feat:
                # All times of a clip at once: one at a time, each would take a call of its own.
                self.sampler.text.null_at([t for step in clip.steps for t in step.times])

    def _branches_of(self, clip: Clip) -> tuple[Branch, Branch | None]:
        condition = clip.condition.select([0], self.kind.cell.tokens)
        own = Branch(clip.prompt, condition)
        if not self.kind.guided:
            return own, None
        if self.sampler.enable_ctxt_null_feat:
            return own, Branch(NULL, None)
        null = self.sampler.null.vector.to(condition.vector)
        unguided = Conditions(condition.context, null, condition.length)
        return own, Branch(("null vector", clip.prompt), unguided)

    @torch.inference_mode()
    def step(self) -> list[tuple[Clip, Tensor]]:
        """One solver step of every clip; those that reached the end leave.

        Returns them with their latents (num_frames, 201) fp32 on the sampler's device, finite or
        not. Nothing is waited for there.
        """
        assert self.clips, "an empty batch takes no step"
        members = [*self.clips, *[self.clips[0]] * (len(self._branches) - len(self.clips))]
        steps = [clip.steps[clip.num_done] for clip in members]
        velocity = partial(self._velocity, steps)
        self._x = advance(velocity, self._x, row_steps(steps, self._x.device))
        for clip in self.clips:
            clip.num_done += 1
        ended = [(i, clip) for i, clip in enumerate(self.clips) if not clip.num_left]
        results = [(clip, self._x[i, : clip.num_frames].clone()) for i, clip in ended]
        if ended:
            self.drop([clip for _, clip in ended])
        return results

    def _velocity(self, steps_B: Sequence[Step], x_BLF: Tensor, times_B: Sequence[float]) -> Tensor:
        """The guided velocity (B, L, 201) fp32, each row at its own time of its own step."""
        cell, pairs = self.kind.cell, list(zip(self._branches, times_B, strict=True))
        uses = [step.null_use(t) for step, t in zip(steps_B, times_B, strict=True)]
        now = [(own, t) for (own, _), t in pairs]
        if not self.kind.apart or "new" in uses:
            now += [(null, t) for (_, null), t in pairs if null is not None]
        shelf = self._own_shelf()
        places = shelf.places(now, self._ahead())
        index = upload(places, torch.int64, x_BLF.device)
        for _ in range(len(now) // len(pairs) if self.kind.apart else 1):
            num_rows = len(pairs) if self.kind.apart else len(now)
            self.sampler.work.count_motion(num_rows, cell.frames, cell.tokens)
        velocity, rows = self.sampler.velocity, shelf.rows
        if self.kind.apart:
            v, self._direction = velocity.apart(
                x_BLF, rows, index, self._layout, self._scale, uses, self._direction
            )
            return v
        scale = self._scale if self.kind.guided else None
        return velocity(x_BLF, rows, index, self._layout, scale)

    def _own_shelf(self) -> TextShelf:
        """Taken at the first step, given back when no clip is left."""
        if self._shelf is None:
            stages = len(solver_steps(self.kind.method, 1)[0].times)
            capacity = 2 * stages * self.kind.cell.rows + self.sampler.grid.text_rows
            self._shelf = self.sampler.shelves.take(self.kind, self.kind.cell.tokens, capacity)
        return self._shelf

    def _ahead(self) -> Iterator[tuple[Branch, float]]:
        """Pairs of branch and time that the steps after this one will want, the soonest first."""
        # One call's rows at most are computed ahead: so many steps of as many prompts, and what
        # the last call had room for.
        prompts = len({own.name for own, _ in self._branches})
        most = self.sampler.grid.text_rows // prompts + 1
        most = min(most, max(clip.num_left for clip in self.clips))
        for offset in range(most):
            for clip, branches in zip(self.clips, self._branches, strict=False):
                if offset < clip.num_left:
                    for t in clip.steps[clip.num_done + offset].times:
                        yield from ((branch, t) for branch in branches if branch is not None)
