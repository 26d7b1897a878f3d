"""Which rows are computed together: batches of one fixed shape. Knows no tensors.

A row's shape comes from the row alone, so what else is asked for never changes it. Rows of one
prompt stand together, so that their text is computed once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hymotion_ray.config.grid import Grid, GridCell
from hymotion_ray.errors import ConfigError

MAX_GROUP = 64
"""Batches side by side; bounds the memory of one prompt with very many seeds."""


@dataclass(frozen=True)
class Row:
    """One clip to sample; `ConfigError` where a field is no whole number."""

    prompt: int
    """Which prompt of the condition."""
    num_frames: int
    """Length of the clip."""
    seed: int
    """Seed of its noise."""

    def __post_init__(self) -> None:
        for name in ("prompt", "num_frames", "seed"):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, int(operator.index(value)))
            except TypeError as error:
                raise ConfigError(
                    f"a row's {name} is {value!r:.60} ({type(value).__name__}); allowed: a whole "
                    "number"
                ) from error


@dataclass(frozen=True)
class Batch:
    """Rows that share one call of the network; at most `cell.rows` of them."""

    cell: GridCell
    indices: tuple[int, ...]
    """Their places in the list of rows."""

    @property
    def padded_indices(self) -> tuple[int, ...]:
        """The places, the first one repeated until there are `cell.rows`."""
        return self.indices + self.indices[:1] * (self.cell.rows - len(self.indices))


def check_rows(rows: Sequence[Row], num_prompts: int, train_frames: int) -> None:
    """Raise `ConfigError` for the first row that cannot be sampled."""
    for i, row in enumerate(rows):
        if not isinstance(row, Row):
            raise ConfigError(
                f"row {i} is {type(row).__name__}; allowed: Row(prompt=..., num_frames=..., "
                "seed=...)"
            )
        if not 0 <= row.prompt < num_prompts:
            allowed = f"0 to {num_prompts - 1}" if num_prompts else "none, there are no prompts"
            raise ConfigError(f"row {i} asks for prompt {row.prompt}; allowed: {allowed}")
        if not 1 <= row.num_frames <= train_frames:
            raise ConfigError(
                f"row {i} asks for {row.num_frames} frames; allowed: 1 to {train_frames}, the "
                "window this model was trained on; ask for a shorter clip"
            )
        if not -(2**63) <= row.seed < 2**64:
            raise ConfigError(f"row {i} has seed {row.seed}; allowed: 64-bit whole numbers")


def plan_batches(
    rows: Sequence[Row], lengths: Sequence[int], grid: Grid, train_frames: int
) -> list[Batch]:
    """Batches that hold every row once; `lengths[p]` is the token count of prompt p."""
    cells: dict[GridCell, list[int]] = {}
    for i, row in enumerate(rows):
        cell = grid.cell(row.num_frames, lengths[row.prompt], train_frames)
        cells.setdefault(cell, []).append(i)
    batches = []
    for cell, members in cells.items():
        members.sort(key=lambda i: rows[i].prompt)
        for start in range(0, len(members), cell.rows):
            batches.append(Batch(cell, tuple(members[start : start + cell.rows])))
    return batches


def group_batches(
    batches: Sequence[Batch], rows: Sequence[Row], max_prompts: Callable[[GridCell], int]
) -> list[list[Batch]]:
    """Runs of at most `MAX_GROUP` batches of one cell with at most `max_prompts(cell)` prompts.

    The batches of a run go through the steps side by side and share the text of their prompts. A
    run is at least one batch, however many its prompts are.
    """
    groups: list[list[Batch]] = []
    prompts: set[int] = set()
    for batch in batches:
        wanted = {rows[i].prompt for i in batch.indices}
        open_group = groups and groups[-1][0].cell == batch.cell and len(groups[-1]) < MAX_GROUP
        if open_group and len(prompts | wanted) <= max_prompts(batch.cell):
            groups[-1].append(batch)
            prompts |= wanted
        else:
            groups.append([batch])
            prompts = wanted
    return groups
