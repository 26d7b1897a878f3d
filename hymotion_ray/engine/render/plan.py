"""From prompt files to the list of work: ids, seeds, identities, cells. Ray-free; no GPU work.

Everything a row can be rejected for is settled here, before anything is computed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TextIO

from hymotion_ray.config.grid import Grid, GridCell
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.identity import PromptIdentity, noise_seeds
from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.engine.render.model_info import ModelInfo
from hymotion_ray.engine.render.rewrite import RewriteStage
from hymotion_ray.engine.worklist import Worklist, WorkPrompt, target_key
from hymotion_ray.formats.atomic import Store
from hymotion_ray.formats.names import safe_group, safe_stem
from hymotion_ray.formats.prompts import PromptRow, Reject, iter_prompts, settle_ids

MIN_FRAMES, MAX_FRAMES = 20, 360
"""Lengths that the released models are asked for; others are clamped, or rejected by `strict`."""
_BATCH = 512


@dataclass
class PlanCounts:
    """What the prompt files held, and what of it is still to be done."""

    prompts: int = 0
    """Rows that can be rendered."""
    rejected: int = 0
    """Rows that cannot."""
    asked: int = 0
    """Clips asked for: prompts times seeds."""
    new: int = 0
    """Clips to compute."""
    done: int = 0
    """Clips finished by an earlier job in this folder."""
    export: int = 0
    """Finished clips that lack a format."""
    warned: int = 0
    """Rows with a warning."""
    skipped: int = 0
    """Rows left out by the id policy `skip`."""
    first_rejects: list[Reject] = field(default_factory=list)
    """The first few rejects, for the terminal."""
    first_keys: list[bytes] = field(default_factory=list)
    """Output names of the first clips, for the page."""
    frames: dict[int, int] = field(default_factory=dict)
    """Clips asked for, by number of frames."""

    def reject(self, reject: Reject, sink: TextIO) -> None:
        """Count a reject and write its line to `sink`; a skipped duplicate is no failure."""
        if reject.code == "duplicate_skipped":
            self.skipped += 1
            return
        self.rejected += 1
        if len(self.first_rejects) < 5:
            self.first_rejects.append(reject)
        sink.write(json.dumps(reject.to_mapping(), ensure_ascii=False) + "\n")


def read_done(store: Store, worklist: Worklist) -> int:
    """Tell the list what the folder's manifest has; returns how many rows are not the last word."""
    columns = ["group", "stem", "identity", "formats", "status", "attempt"]
    for batch in read_batches(store, columns):
        groups, stems, identities, formats, status, attempts = (
            batch.column(name).to_pylist() for name in columns
        )
        worklist.add_known(
            (target_key(group, stem), bytes.fromhex(identity), held if done == "done" else None, n)
            for group, stem, identity, held, done, n in zip(
                groups, stems, identities, formats, status, attempts, strict=True
            )
        )
    return worklist.settle_known()


def make_plan(
    rows: Iterable[PromptRow | Reject],
    config: RenderConfig,
    model: ModelInfo,
    folder_identity: str,
    worklist: Worklist,
    rewrite: RewriteStage,
    rejects: TextIO,
) -> PlanCounts:
    """Put every clip that `rows` ask for on the list; write what cannot be done to `rejects`."""
    counts = PlanCounts()
    settled = settle_ids(rows, worklist.seen, config.id_policy)
    add = _Adder(config, model, folder_identity, worklist, counts, rejects)
    for batch in _batches(_without_rejects(settled, counts, rejects), _BATCH):
        reworded = rewrite(batch)
        tokens = model.token_counter.count_tokens([row.text for row in reworded])
        for row, num_tokens in zip(reworded, tokens, strict=True):
            add.row(row, num_tokens)
    return counts


def count_only(rows: Iterable[PromptRow | Reject], config: RenderConfig) -> PlanCounts:
    """Counts of a job without model or output folder, for a dry run."""
    counts = PlanCounts()
    for row in settle_ids(rows, {}, config.id_policy):
        if isinstance(row, Reject):
            counts.rejected += 1
            counts.first_rejects = [*counts.first_rejects, row][:5]
            continue
        num_seeds = len(row_seeds(row, config))
        counts.prompts += 1
        counts.warned += bool(row.warnings)
        counts.asked += num_seeds
        counts.frames[row.num_frames] = counts.frames.get(row.num_frames, 0) + num_seeds
    counts.new = counts.asked
    return counts


def prompt_rows(
    config: RenderConfig, train_frames: int, warn: Callable[[str], None]
) -> Iterator[PromptRow | Reject]:
    """The rows of the job's prompt files, as a stream, within the model's training window."""
    return iter_prompts(
        config.prompts,
        default_frames=config.default_frames,
        strict=config.strict,
        min_frames=min(MIN_FRAMES, train_frames),
        max_frames=min(MAX_FRAMES, train_frames),
        warn=warn,
    )


def row_seeds(row: PromptRow, config: RenderConfig) -> tuple[int, ...]:
    """Seeds of a row: its own, else the job's list, else 0, 1, ..."""
    return row.seeds or config.seed_list or tuple(range(config.num_seeds))


def fit_grid(grid: Grid, histogram: Sequence[tuple[int, int, int]], train_frames: int) -> Grid:
    """`grid` with no more rows than the fullest cell of `histogram` fills, as a power of two.

    `histogram` holds (num_frames, num_tokens, rows). The choice is stored with the folder: later
    jobs there keep it, so that their bits stay the same.
    """
    filled: dict[str, int] = {}
    for num_frames, num_tokens, num_rows in histogram:
        cell = str(grid.cell(num_frames, num_tokens, train_frames))
        filled[cell] = filled.get(cell, 0) + num_rows
    most = max(filled.values(), default=1)
    rows = 1
    while rows < most:
        rows *= 2
    return dataclasses.replace(grid, rows=min(grid.rows, rows))


@dataclass
class _Adder:
    """Puts the clips of one row after another on the list."""

    config: RenderConfig
    model: ModelInfo
    folder_identity: str
    worklist: Worklist
    counts: PlanCounts
    rejects: TextIO

    def row(self, row: PromptRow, num_tokens: int) -> None:
        """Add the prompt and one clip a seed."""
        counts, formats, cell = self.counts, self.config.all_formats, self.config.exact_cell
        if cell is not None and (row.num_frames > cell.frames or num_tokens > cell.tokens):
            counts.reject(_outside(row, num_tokens, cell), self.rejects)
            return
        own = self.model.sampling
        num_steps = own.num_steps if row.num_steps is None else row.num_steps
        guidance = own.guidance_scale if row.guidance_scale is None else row.guidance_scale
        prompt = WorkPrompt(
            prompt_id=row.prompt_id,
            group=safe_group(row.group),
            text=row.text,
            original_text=row.original_text,
            num_frames=row.num_frames,
            num_steps=num_steps,
            guidance_scale=guidance,
            num_tokens=num_tokens,
            warnings="; ".join(row.warnings),
        )
        identity = PromptIdentity(
            folder_identity=self.folder_identity,
            text=row.text,
            num_frames=row.num_frames,
            num_steps=num_steps,
            guidance_scale=guidance,
        )
        counts.prompts += 1
        counts.warned += bool(row.warnings)
        self.worklist.add_prompt(prompt)
        for seed in row_seeds(row, self.config):
            key = target_key(prompt.group, safe_stem(row.prompt_id, seed))
            clip = identity.of(noise_seeds(seed, self.config.best_of))
            outcome = self.worklist.add_clip(key, clip, seed, formats)
            if outcome == "taken":
                counts.reject(_taken(row, seed), self.rejects)
                continue
            counts.asked += 1
            if len(counts.first_keys) < self.config.preview_clips:
                counts.first_keys.append(key)
            setattr(counts, outcome, getattr(counts, outcome) + 1)
            counts.frames[row.num_frames] = counts.frames.get(row.num_frames, 0) + 1


def _outside(row: PromptRow, num_tokens: int, cell: GridCell) -> Reject:
    return Reject(
        file=row.file,
        line=row.line,
        code="outside_cell",
        message=(
            f"{row.num_frames} frames and {num_tokens} tokens do not fit into the cell {cell} that"
            " --exact pins; pin a larger one, or shorten the row"
        ),
        prompt_id=row.prompt_id,
        text=row.text,
    )


def _taken(row: PromptRow, seed: int) -> Reject:
    return Reject(
        file=row.file,
        line=row.line,
        code="id_taken",
        message=(
            f"{row.prompt_id!r} seed {seed} is finished in this folder with another text,"
            " length or setting; give the row another id, or pass another --out"
        ),
        prompt_id=row.prompt_id,
        text=row.text,
    )


def _without_rejects(
    rows: Iterable[PromptRow | Reject], counts: PlanCounts, sink: TextIO
) -> Iterator[PromptRow]:
    for row in rows:
        if isinstance(row, Reject):
            counts.reject(row, sink)
        else:
            yield row


def _batches(rows: Iterator[PromptRow], size: int) -> Iterator[list[PromptRow]]:
    while batch := list(islice(rows, size)):
        yield batch
