"""What the fused network's halves hand to each other: text rows read where they stand, lengths.

Shapes: T text rows, B motion rows, L frames, E head width.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from hymotion_ray.model.streams import TextStream


@dataclass(frozen=True)
class FusedRows:
    """Text rows, or some of them by place: kernels read them without a copy."""

    stream: TextStream
    index: Tensor | None = None
    """(B,) int64: which rows are meant; None: all, in order."""

    def __len__(self) -> int:
        return len(self.stream) if self.index is None else len(self.index)

    @property
    def num_bytes(self) -> int:
        """Memory that the tensors take."""
        return self.stream.num_bytes

    @property
    def key(self) -> Hashable:
        """Where the memory lies, and its shape."""
        return self.stream.key

    def rows(self, index: Tensor) -> FusedRows:
        """The rows at `index`, copied."""
        return FusedRows(self.stream.rows(index))

    def pick(self, index: Tensor) -> FusedRows:
        """The rows at `index`, to be read before the next `write`."""
        return FusedRows(self.stream, index)

    def write(self, index: Tensor, source: FusedRows) -> None:
        """Overwrite the rows at `index` with the first rows of `source`."""
        self.stream.write(index, source.stream)


@dataclass(frozen=True)
class FusedLayout:
    """Lengths of the clips of a batch, which stand for a mask, and where frames stand."""

    num_frames: Tensor
    """(B,) int64."""
    num_tokens: Tensor
    """(B,) int64, each at least 1."""
    table: Tensor
    """(2, L, E/2) fp32 cosines and sines of the motion positions."""

    def clone(self) -> FusedLayout:
        """A layout of its own."""
        return FusedLayout(self.num_frames.clone(), self.num_tokens.clone(), self.table)

    def copy_(self, other: FusedLayout) -> None:
        """Take over the lengths of a layout of the same shape."""
        self.num_frames.copy_(other.num_frames)
        self.num_tokens.copy_(other.num_tokens)
