"""Stage: conditions -> latents, on the device Ray gave this process. Wraps `hymotion_ray.flow`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import torch

from hymotion_ray.api import Model, load_model
from hymotion_ray.config.grid import Grid
from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.engine.device import (
    device_bytes,
    device_name,
    device_of_this_process,
    release_memory,
    set_threads,
)
from hymotion_ray.engine.offloaded import OffloadedModel
from hymotion_ray.engine.pulse import beat
from hymotion_ray.engine.render.nearest import card_that_fits, flags_that_fit
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.engine.sampler_group import SamplerGroup
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.errors import SamplingError
from hymotion_ray.flow.plan import Row
from hymotion_ray.flow.sampler import Sampler, nonfinite_rows
from hymotion_ray.text.condition import TextCondition


@dataclass
class SampleStage:
    """All candidates of a chunk in one call.

    In: tensors of a condition, `prompt_row`. Out: tensor `latent` (sum of frames, 201), candidates
    of an item side by side; columns device, cell, precision, degradations, seconds (a share of the
    call's time a clip).

    Clips that are not finite are sampled once more in float32. Out of memory halves the rows of a
    call, then moves the weights to host memory, for as long as this process lives; all that stands
    in `degradations`. With `exact` none of it is done, and such clips fail. With `split` this
    process leads a group that samples together.
    """

    settings: StageSettings
    name: str = "sample"
    _model: Model | OffloadedModel | None = field(default=None, init=False)
    _sampler: Sampler | SamplerGroup | None = field(default=None, init=False)
    _float32: Sampler | SamplerGroup | None = field(default=None, init=False)

    def setup(self) -> None:
        """Load the network onto this process's device."""
        device = device_of_this_process()
        if device == "cpu":
            set_threads(self.settings.cpu_threads)
        self._device = device_name(device)
        if self.settings.split is None:
            self._model = self._load(device)
        self._sampler = self._new_sampler(self.settings.grid)

    def _load(self, device: str) -> Model | OffloadedModel:
        """The network on its device; block by block where it is asked for or has no room."""
        settings = self.settings
        if settings.offload == "none":
            try:
                return load_model(settings.model, device=device, dtype=settings.precision)
            except torch.OutOfMemoryError:
                if settings.exact:
                    raise
                if settings.precision == "float8":
                    advice = flags_that_fit(settings)
                    text = f"the weights do not fit {device_name(device)}; {advice}"
                    raise SamplingError(text) from None
        return OffloadedModel(settings.model, device, settings.precision)

    def _new_sampler(self, grid: Grid) -> Sampler | SamplerGroup:
        """The sampler of this process, or of the group that it leads."""
        settings = self.settings
        if settings.split is None:
            assert self._model is not None
            self._train_frames = self._model.config.train_frames
            self._precision = self._model.precision, self._model.precision_reason
            return self._model.new_sampler(grid, settings.noise)
        group = SamplerGroup(
            settings.model,
            settings.split,
            precision=settings.precision,
            grid=grid,
            noise=settings.noise,
            cpu_threads=settings.cpu_threads,
        )
        self._device, self._train_frames = group.device, group.train_frames
        self._precision = group.precision, group.precision_reason
        return group

    def __call__(self, chunk: Chunk) -> Chunk:
        """Sample the living items of a chunk, which share one cell and one setting."""
        alive = chunk.alive
        frames, seeds = chunk.column("num_frames"), chunk.column("noise_seeds")
        prompts = chunk.column("prompt_row")
        rows = [Row(prompts[i], frames[i], seed) for i in alive for seed in seeds[i]]
        start = time.perf_counter()
        try:
            latents, notes, again, bad = self._sample(chunk, rows)
        except torch.OutOfMemoryError as error:
            if not self.settings.exact:
                raise
            text = f"out of memory in the cell that --exact pins; no other is tried ({error})"
            return chunk.with_all_failed("not_exact", text)
        share = (time.perf_counter() - start) / len(alive)
        errors: dict[int, tuple[str, str]] = {}
        in_float32: set[int] = set()
        at = 0
        kept: list[torch.Tensor] = []
        for i in alive:
            mine = range(at, at + len(seeds[i]))
            at += len(seeds[i])
            if again.intersection(mine):
                in_float32.add(i)
            if bad.intersection(mine):
                errors[i] = ("not_finite", self._not_finite_words())
            else:
                kept += [latents[k] for k in mine]
        tensors = {"latent": torch.cat(kept)} if kept else {}
        chunk = self._with_columns(chunk, alive, share, notes, in_float32)
        return chunk.with_errors(errors).with_tensors(tensors)

    def _sample(
        self, chunk: Chunk, rows: Sequence[Row]
    ) -> tuple[list[torch.Tensor], list[str], set[int], set[int]]:
        """Latents, what all have in common, which rows were sampled in float32, which are bad."""
        assert self._sampler is not None, "setup runs before the first call"
        alive = chunk.alive
        sampling = replace(
            self.settings.sampling,
            num_steps=chunk.column("num_steps")[alive[0]],
            guidance_scale=chunk.column("guidance_scale")[alive[0]],
        )
        t = chunk.tensors
        condition = TextCondition(context=t["context"], vector=t["vector"], length=t["length"])
        notes: list[str] = []
        latents = self._in_memory(condition, rows, sampling, notes)
        if self.settings.approximation:
            notes.append(f"approximate: {self.settings.approximation}")
        if self.settings.noise == "gpu":
            notes.append("noise drawn on the GPU")
        if self.settings.text.is_approximate and self.settings.text_config.kind != "static":
            notes.append(f"text features of an encoder in {self.settings.text.precision}")
        bad, redo = set(nonfinite_rows(latents)), set[int]()
        if bad and not self.settings.exact:
            redo = bad
            if self._float32 is None:
                self._float32 = self._sampler.in_float32()
            again = sorted(bad)
            redone = self._float32.sample(
                condition.context,
                condition.vector,
                condition.length,
                [rows[k] for k in again],
                sampling,
                on_step=beat,
                check=False,
            )
            for k, latent in zip(again, redone, strict=True):
                latents[k] = latent
            bad = {again[k] for k in nonfinite_rows(redone)}
        return latents, notes, redo, bad

    def _in_memory(
        self,
        condition: TextCondition,
        rows: Sequence[Row],
        sampling: SamplingConfig,
        notes: list[str],
    ) -> list[torch.Tensor]:
        assert self._sampler is not None
        while True:
            try:
                latents = self._sampler.sample(
                    condition.context,
                    condition.vector,
                    condition.length,
                    rows,
                    sampling,
                    on_step=beat,
                    check=False,
                )
                break
            except torch.OutOfMemoryError as error:
                if self.settings.exact:
                    raise
                found = str(error)
            # Out of the handler, which keeps the failed call's own.
            self._take_less_memory(found, max(r.num_frames for r in rows), condition)
        grid = self._sampler.grid
        if grid.rows != self.settings.grid.rows:
            notes.append(
                f"rows {grid.rows} instead of {self.settings.grid.rows} after out of memory"
            )
        if self.settings.offload == "none" and isinstance(self._model, OffloadedModel):
            notes.append("weights in host memory after out of memory")
        return latents

    def _take_less_memory(self, found: str, num_frames: int, condition: TextCondition) -> None:
        """Half the rows; with one left, the weights in host memory; `SamplingError` after that.

        Of clips of at most `num_frames`.
        """
        assert self._sampler is not None
        grid, split = self._sampler.grid, self.settings.split
        may_offload = split is None and self.settings.precision != "float8"
        fewer = grid.rows // 2 if split is None else split.fitting_rows(grid.rows // 2)
        self._sampler = self._float32 = None
        if fewer not in (0, grid.rows):
            grid = replace(grid, rows=fewer)
        elif may_offload and isinstance(self._model, Model):
            self._model = None
            release_memory()
            settings = self.settings
            device = device_of_this_process()
            self._model = OffloadedModel(settings.model, device, settings.precision)
        else:
            self._sampler = self._new_sampler(grid)
            where = f"with {grid.rows} clips at once, the fewest, on {self._device}"
            if isinstance(self._model, OffloadedModel):
                where += " and with its weights in host memory"
                cell = grid.cell(num_frames, condition.context.shape[1], self._train_frames)
                network, precision = self._model.config.network, self._model.precision
                room = device_bytes()
                advice = card_that_fits(self.settings, network, cell, precision, room)
            else:
                advice = flags_that_fit(self.settings)
            raise SamplingError(f"out of memory {where} ({found:.200}); {advice}")
        release_memory()
        self._sampler = self._new_sampler(grid)

    def _not_finite_words(self) -> str:
        if self.settings.exact:
            return "the sampled motion is not finite; --exact allows no second try in float32"
        return "the sampled motion is not finite, in float32 too; the weights are suspect"

    def _with_columns(
        self,
        chunk: Chunk,
        alive: list[int],
        seconds: float,
        notes: list[str],
        in_float32: set[int],
    ) -> Chunk:
        assert self._sampler is not None
        num_items, living = chunk.items.num_rows, set(alive)
        frames, tokens = chunk.column("num_frames"), chunk.column("num_tokens")
        cells = [
            str(self._sampler.grid.cell(frames[i], tokens[i], self._train_frames))
            if i in living
            else None
            for i in range(num_items)
        ]

        def column(value: str, redone: str) -> pa.Array:
            values = [redone if i in in_float32 else value for i in range(num_items)]
            return pa.array([v if i in living else None for i, v in enumerate(values)], pa.string())

        own, reason = self._precision
        again = [*notes, "float32 after not finite"]

        return chunk.with_columns(
            {
                "cell": pa.array(cells, pa.string()),
                "seconds": pa.array(
                    [seconds if i in living else None for i in range(num_items)], pa.float32()
                ),
                "device": column(self._device, self._device),
                "precision": column(own, "float32"),
                "precision_reason": column(reason, f"clips not finite in {own} are sampled again"),
                "degradations": column("; ".join(notes), "; ".join(again)),
            }
        )
