"""Sampling: from prompts, lengths and seeds to latents, with every exact saving.

A row's bits depend on the row, the grid and the settings alone: not on what else is in the call,
nor on order. Each row is computed in the grid cell of its own length and token count, in batches of
one fixed number of rows; text rows are computed in calls of one fixed size.

Knows no files, no text and no decoding. The network comes as an object (`flow.network`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hymotion_ray.config.grid import Grid, GridCell, text_window_bytes
from hymotion_ray.config.sampling import NoiseSource, SamplingConfig
from hymotion_ray.errors import ConfigError, SamplingError
from hymotion_ray.flow.conditions import Conditions, prepare_conditions
from hymotion_ray.flow.dense import sample_dense
from hymotion_ray.flow.guidance import keeps_apart, needs_null, sampling_steps
from hymotion_ray.flow.network import Network
from hymotion_ray.flow.path import noise
from hymotion_ray.flow.plan import Batch, Row, check_rows, group_batches, plan_batches
from hymotion_ray.flow.solvers import Step, advance, solver_steps, stage_times
from hymotion_ray.flow.text_shelf import SpareShelves
from hymotion_ray.flow.text_window import (
    NullKind,
    TextHalf,
    TextWindow,
    count_branches,
    null_branches,
)
from hymotion_ray.flow.upload import send, upload
from hymotion_ray.flow.velocity import GuidedVelocity
from hymotion_ray.flow.work import Work

OnStep = Callable[[int, int], None]
"""Called after every solver step of a batch with (steps done, steps in all); may raise to stop."""

NULL_CACHE_BYTES = 64 * 2**20


@dataclass
class _Run:
    """A batch on its way from noise to data."""

    batch: Batch
    x: Tensor
    """(B, L, 201) fp32."""
    branches: Tensor
    """Which text row each motion row attends to: (B,), or (2B,) with the null branch after."""
    num_frames: Tensor
    """Frames of each motion row of a call: as `branches`, or (B,) with branches kept apart."""
    num_tokens: Tensor
    """Text tokens of each of them."""
    scale: Tensor | None
    """Guidance scale (B, 1, 1) fp32; None without guidance."""
    apart: bool
    """Whether each branch is a call of its own."""
    direction: Tensor | None = None
    """Direction of guidance (B, L, 201) of the last evaluation, with branches kept apart."""


class Sampler:
    """Samples latents with one network. Not for several threads at once.

    `work` counts the calls of the network's halves. What is kept of the null text is of the weights
    as they were: make a new sampler when they change.
    """

    def __init__(
        self,
        network: Network,
        *,
        null_vector: Tensor,
        null_context: Tensor,
        train_frames: int,
        enable_ctxt_null_feat: bool = True,
        grid: Grid | None = None,
        text_window_bytes: int | None = None,
        null_cache_bytes: int = NULL_CACHE_BYTES,
        noise_source: NoiseSource = "cpu",
    ) -> None:
        """`network` computes in its own dtype on its own device; it is not changed.

        null_vector (1, 1, V) and null_context (1, 1, C) are the learned null features;
        `enable_ctxt_null_feat` says whether the null branch replaces the context too.
        `text_window_bytes` bounds the text rows computed ahead (None: by the device), though one
        step of one batch is always computed; `null_cache_bytes` bounds what is kept of the null
        text across calls. `noise_source` "gpu" draws noise on the network's GPU, as the released
        Lite model does (other noise than elsewhere); `ConfigError` where the network is on none.
        """
        if train_frames != network.train_frames:
            raise ConfigError(
                f"train_frames is {train_frames}; allowed: {network.train_frames}, the network's"
            )
        if noise_source == "gpu" and network.device.type != "cuda":
            raise ConfigError(
                f"noise is drawn on a GPU, but the network is on {network.device}; allowed there:"
                " noise cpu, or a CUDA device"
            )
        self.network = network
        self.noise_source: NoiseSource = noise_source
        self._noise_device = network.device if noise_source == "gpu" else torch.device("cpu")
        self.null_vector = null_vector
        self.null_context = null_context
        self.enable_ctxt_null_feat = enable_ctxt_null_feat
        self.grid = grid or Grid()
        self.text_window_bytes = text_window_bytes or default_window_bytes(network.device)
        self.null_cache_bytes = null_cache_bytes
        self.work = Work()
        self.velocity = GuidedVelocity(network)
        self.text = TextHalf(
            network, null_vector, null_context, self.grid.text_rows, null_cache_bytes, self.work
        )
        self.shelves = SpareShelves(self.text)

    @property
    def null(self) -> Conditions:
        """The learned null text as one prompt of one token."""
        return self.text.null

    def in_float32(self) -> Sampler:
        """A sampler of the same settings over a copy of the network in fp32, for a second try."""
        return Sampler(
            copy.deepcopy(self.network).to(torch.float32),
            null_vector=self.null_vector,
            null_context=self.null_context,
            train_frames=self.network.train_frames,
            enable_ctxt_null_feat=self.enable_ctxt_null_feat,
            grid=self.grid,
            text_window_bytes=self.text_window_bytes,
            null_cache_bytes=self.null_cache_bytes,
            noise_source=self.noise_source,
        )

    @torch.inference_mode()
    def sample(
        self,
        context: Tensor,
        vector: Tensor,
        context_length: Tensor,
        rows: Sequence[Row],
        sampling: SamplingConfig,
        *,
        on_step: OnStep | None = None,
        check: bool = True,
    ) -> list[Tensor]:
        """Latents (num_frames, 201) fp32 on CPU, one a row, in the order of `rows`.

        context (P, N, C), vector (P, 1, V), context_length (P,) int64; what lies past a length is
        ignored. A prompt of length 0 is sampled with the null context as its only token.
        Raises `ConfigError`, before any work, for a row outside the model's or the grid's limits,
        and `SamplingError` naming the rows whose result is not finite. With `check` false these are
        returned as they are (`nonfinite_rows` finds them), so that the others are not lost.
        """
        conditions = prepare_conditions(
            context, vector, context_length, self.text.null, self.network
        )
        check_rows(rows, len(conditions), self.network.train_frames)
        lengths = conditions.length.tolist()
        batches = plan_batches(rows, lengths, self.grid, self.network.train_frames)
        groups = group_batches(batches, rows, partial(self._max_prompts, sampling))
        tick = _counter(on_step, len(batches) * sampling.num_steps)
        latents: dict[int, Tensor] = {}
        running: list[_Run] = []
        for group in groups:
            # A device computes behind the host's back: the next group is drawn and queued before
            # the last one's results are waited for.
            queued = self._integrate(group, conditions, rows, sampling, tick)
            _collect(running, rows, latents)
            running = queued
        _collect(running, rows, latents)
        results = [latents[i] for i in range(len(rows))]
        if check:
            raise_if_nonfinite(results, rows)
        return results

    def _integrate(
        self,
        group: Sequence[Batch],
        all_conditions: Conditions,
        rows: Sequence[Row],
        sampling: SamplingConfig,
        tick: Callable[[], None],
    ) -> list[_Run]:
        """Take the batches of one group from noise to data, side by side, window after window."""
        prompts = list(dict.fromkeys(rows[i].prompt for b in group for i in b.indices))
        cell, null = group[0].cell, self._null_kind(sampling)
        conditions = all_conditions.select(prompts, cell.tokens)
        runs: list[_Run] = []
        steps = sampling_steps(sampling)
        steps_per_window = self._steps_per_window(len(prompts), cell, sampling)
        window = None
        for first in range(0, len(steps), steps_per_window):
            ahead = steps[first : first + steps_per_window]
            window = self.text.window(conditions, stage_times(ahead), null, window)
            if not runs:
                # Drawn while the device is at the text.
                runs = [self._start(b, conditions, prompts, rows, null, sampling) for b in group]
            for run in runs:
                layout = self.network.motion_layout(
                    run.num_frames, run.num_tokens, cell.frames, cell.tokens
                )
                for step in ahead:
                    velocity = partial(self._velocity, run, window, layout, step)
                    run.x = advance(velocity, run.x, step)
                    tick()
        return runs

    def _velocity(
        self, run: _Run, window: TextWindow, layout: Any, step: Step, x_BLF: Tensor, t: float
    ) -> Tensor:
        """The guided velocity (B, L, 201) fp32 of a batch at time t of `step`."""
        cell, use = run.batch.cell, step.null_use(t)
        num_calls = 1 + (run.apart and use == "new")
        for _ in range(num_calls):
            self.work.count_motion(len(run.num_frames), cell.frames, cell.tokens)
        index = window.places(t, run.branches)
        if not run.apart or run.scale is None:
            return self.velocity(x_BLF, window.rows, index, layout, run.scale)
        v, run.direction = self.velocity.apart(
            x_BLF, window.rows, index, layout, run.scale, [use] * len(x_BLF), run.direction
        )
        return v

    def _start(
        self,
        batch: Batch,
        conditions: Conditions,
        prompts: Sequence[int],
        rows: Sequence[Row],
        null: NullKind,
        sampling: SamplingConfig,
    ) -> _Run:
        """A batch at t = 0: its noise, its branches and its lengths."""
        device, cell = self.network.device, batch.cell
        members = [rows[i] for i in batch.padded_indices]
        x = self._noise([row.seed for row in members])[:, : cell.frames]
        place = {prompt: i for i, prompt in enumerate(prompts)}
        branches = upload([place[r.prompt] for r in members], torch.int64, device)
        num_frames = upload([r.num_frames for r in members], torch.int64, device)
        num_tokens = conditions.length[branches]
        apart, scale = keeps_apart(sampling), None
        if null != "none":
            nulls = null_branches(branches, len(conditions), null)
            branches = torch.cat((branches, nulls))
            if not apart:
                num_frames, num_tokens = num_frames.repeat(2), num_tokens.repeat(2)
            scale = torch.full((len(x), 1, 1), sampling.guidance_scale, device=device)
        return _Run(batch, send(x, device), branches, num_frames, num_tokens, scale, apart)

    def _noise(self, seeds: Sequence[int]) -> Tensor:
        """Noise of the whole training window for each of `seeds`, equal ones drawn once."""
        draw = partial(noise, train_frames=self.network.train_frames, device=self._noise_device)
        distinct = list(dict.fromkeys(seeds))
        with ThreadPoolExecutor(min(8, len(distinct))) as threads:
            drawn = dict(zip(distinct, threads.map(draw, distinct), strict=True))
        return torch.stack([drawn[seed] for seed in seeds])

    def _null_kind(self, sampling: SamplingConfig) -> NullKind:
        if not needs_null(sampling.guidance_scale):
            return "none"
        return "null_text" if self.enable_ctxt_null_feat else "own_context"

    def _text_rows_in_window(self, cell: GridCell) -> int:
        return max(1, self.text_window_bytes // self.network.text_row_bytes(cell.tokens))

    def _max_prompts(self, sampling: SamplingConfig, cell: GridCell) -> int:
        """How many prompts' text fits the window at the times of one step."""
        stages = len(solver_steps(sampling.method, 1)[0].times)
        branches = self._text_rows_in_window(cell) // stages
        return {"none": branches, "null_text": branches - 1, "own_context": branches // 2}[
            self._null_kind(sampling)
        ]

    def _steps_per_window(self, num_prompts: int, cell: GridCell, sampling: SamplingConfig) -> int:
        stages = len(solver_steps(sampling.method, 1)[0].times)
        null = self._null_kind(sampling)
        branches = count_branches(num_prompts, null)
        most = max(1, self._text_rows_in_window(cell) // (stages * branches))
        most = min(most, sampling.num_steps)
        pairs_a_step = stages * (branches - (null == "null_text"))

        def filled(num_steps: int) -> tuple[float, int]:
            """How full the text calls of such a window are; of equal ones the longer."""
            pairs = num_steps * pairs_a_step
            return pairs / -(-pairs // self.grid.text_rows), num_steps

        return max(range(1, most + 1), key=filled)

    def sample_dense(
        self,
        context: Tensor,
        vector: Tensor,
        context_length: Tensor,
        rows: Sequence[Row],
        sampling: SamplingConfig,
    ) -> list[Tensor]:
        """The same latents the reference way, with no saving, to compare `sample` with.

        All frames of the training window, all N tokens, the text half again for every row, step and
        branch; same network, dtype and rows a call. Equal to `sample` up to rounding.
        """
        conditions = prepare_conditions(
            context, vector, context_length, self.text.null, self.network
        )
        check_rows(rows, len(conditions), self.network.train_frames)
        null_context = self.null_context if self.enable_ctxt_null_feat else None
        results = sample_dense(
            self.network, conditions, rows, sampling, self.grid.rows, self.null_vector,
            null_context, self.work, self._noise_device,
        )  # fmt: skip
        raise_if_nonfinite(results, rows)
        return results


def _collect(runs: Sequence[_Run], rows: Sequence[Row], latents: dict[int, Tensor]) -> None:
    """Wait for `runs`, and put each of their rows into `latents`, on the CPU."""
    for run in runs:
        x = run.x.cpu()
        for place, i in enumerate(run.batch.indices):
            latents[i] = x[place, : rows[i].num_frames].clone()


def nonfinite_rows(latents: Sequence[Tensor]) -> list[int]:
    """Indices of the latents that hold a NaN or an infinity."""
    return [i for i, latent in enumerate(latents) if not bool(torch.isfinite(latent).all())]


def raise_if_nonfinite(latents: Sequence[Tensor], rows: Sequence[Row]) -> None:
    """Raise `SamplingError` that names every row whose latent is not finite."""
    bad = nonfinite_rows(latents)
    if bad:
        named = ", ".join(f"{i} (prompt {rows[i].prompt}, seed {rows[i].seed})" for i in bad[:20])
        more = f" and {len(bad) - 20} more" if len(bad) > 20 else ""
        raise SamplingError(
            f"{len(bad)} of {len(rows)} rows are not finite: row {named}{more}; sample them again "
            "in float32, and check their text features if they fail there too"
        )


def default_window_bytes(device: torch.device) -> int:
    """Memory for text rows ahead: by what this process may take of a GPU; 256 MiB on CPU."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        share = torch.cuda.get_per_process_memory_fraction(device)
        return text_window_bytes(int(total * share))
    return 256 * 2**20


def _counter(on_step: OnStep | None, total: int) -> Callable[[], None]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if on_step is not None:
            on_step(done, total)

    return tick
