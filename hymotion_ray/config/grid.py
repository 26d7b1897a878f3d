"""The grid of fixed shapes that clips are sampled in. Knows no tensors.

A clip's bits depend on the shape it is computed in, not on what shares that shape. So every clip is
padded to one cell of a small grid, chosen from the clip's own length and token count alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hymotion_ray.config.fields import require
from hymotion_ray.errors import ConfigError


@dataclass(frozen=True, kw_only=True, order=True)
class GridCell:
    """One fixed shape: `rows` clips a call, of `frames` motion frames and `tokens` text tokens."""

    rows: int
    frames: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.frames}x{self.tokens}"

    @classmethod
    def parse(cls, text: str) -> GridCell:
        """The cell that `str` writes as `text`: rows x frames x tokens, such as 64x150x48."""
        numbers = re.fullmatch(r"(\d{1,6})x(\d{1,6})x(\d{1,6})", text)
        found = tuple(map(int, numbers.groups())) if numbers else ()
        require(
            len(found) == 3 and min(found) >= 1,
            "cell",
            text,
            "ROWSxFRAMESxTOKENS of whole numbers from 1 on, such as 64x150x48",
        )
        rows, frames, tokens = found
        return cls(rows=rows, frames=frames, tokens=tokens)


GPU_ROWS, GPU_TEXT_ROWS = 64, 128
"""Rows a call that fill a large GPU; smaller calls leave it idle."""


def text_window_bytes(memory_bytes: int) -> int:
    """What a sampler that may take so much of a GPU lets text rows take that are computed ahead."""
    return min(memory_bytes // 16, 2**30)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Which cells there are."""

    rows: int = 4
    """Clips a call; fixed for a run, since it is part of the class of a clip's bits."""
    text_rows: int = 8
    """Pairs of prompt and time a call of the text half; fixed for a run, for the same reason."""
    frame_step: int = 30
    """Frame counts are rounded up to a multiple of this (at most the training window)."""
    token_cells: tuple[int, ...] = (16, 32, 48, 64, 96, 128)
    """Token counts are rounded up to one of these."""

    def __post_init__(self) -> None:
        require(self.rows >= 1, "grid.rows", self.rows, "at least 1")
        require(self.text_rows >= 1, "grid.text_rows", self.text_rows, "at least 1")
        require(self.frame_step >= 1, "grid.frame_step", self.frame_step, "at least 1")
        require(
            len(self.token_cells) > 0 and list(self.token_cells) == sorted(set(self.token_cells)),
            "grid.token_cells",
            self.token_cells,
            "rising token counts",
        )

    @classmethod
    def on_device(cls, device: str, rows: int | None = None) -> Grid:
        """The default grid on `cuda` or another device; `rows` None: as many as usual."""
        if device != "cuda":
            return cls() if rows is None else cls(rows=rows)
        return cls(rows=GPU_ROWS if rows is None else rows, text_rows=GPU_TEXT_ROWS)

    @classmethod
    def of_one(cls, cell: GridCell, device: str = "cpu") -> Grid:
        """The grid that has no other cell for what fits into `cell`."""
        usual = cls.on_device(device, cell.rows)
        return replace(usual, frame_step=cell.frames, token_cells=(cell.tokens,))

    def cell(self, num_frames: int, num_tokens: int, train_frames: int) -> GridCell:
        """The cell of a clip of `num_frames` frames under a prompt of `num_tokens` tokens."""
        if not 1 <= num_frames <= train_frames:
            raise ConfigError(
                f"num_frames is {num_frames}; allowed: 1 to {train_frames}, the model's "
                "training window"
            )
        frames = min(-(-num_frames // self.frame_step) * self.frame_step, train_frames)
        for tokens in self.token_cells:
            if num_tokens <= tokens:
                return GridCell(rows=self.rows, frames=frames, tokens=tokens)
        raise ConfigError(
            f"a prompt has {num_tokens} context tokens; allowed: at most {self.token_cells[-1]}"
        )
