"""What the two halves of the network hand to each other. Knows no weights.

Shapes: T text rows (pairs of prompt and time), K blocks, N text tokens, H heads, E head width,
C width of all modulations together, B motion rows, L motion tokens, S = L + N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TextStream:
    """All that motion needs of its prompt and its time; the same for every seed of the prompt."""

    keys: Tensor
    """(T, K, N, H, E): normed and rotated keys of the text tokens, block by block."""
    values: Tensor
    """(T, K, N, H, E): their values."""
    modulation: Tensor
    """(T, 1, C): motion's modulations of all blocks, of the final layer and of the long skip."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        """Memory that the tensors take."""
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values, self.modulation))

    def rows(self, index: Tensor) -> TextStream:
        """The rows at `index` (int64, on the same device), copied."""
        return TextStream(self.keys[index], self.values[index], self.modulation[index])

    def span(self, start: int, stop: int) -> TextStream:
        """Rows `start` to `stop`, as a view."""
        return TextStream(
            self.keys[start:stop], self.values[start:stop], self.modulation[start:stop]
        )

    def expand(self, num_rows: int) -> TextStream:
        """A single row seen `num_rows` times, as a view."""
        return TextStream(
            self.keys.expand(num_rows, -1, -1, -1, -1),
            self.values.expand(num_rows, -1, -1, -1, -1),
            self.modulation.expand(num_rows, -1, -1),
        )

    @staticmethod
    def join(streams: Sequence[TextStream]) -> TextStream:
        """Their rows one after another, copied."""
        return TextStream(
            torch.cat([s.keys for s in streams]),
            torch.cat([s.values for s in streams]),
            torch.cat([s.modulation for s in streams]),
        )


@dataclass(frozen=True)
class MotionLayout:
    """Who sees whom in a batch of clips, and where its motion tokens stand; constant over steps."""

    mask: Tensor
    """(B, 1, L, S) additive, in the network's dtype."""
    rope: Tensor
    """(2, L, 1, E/2) fp32 cosines and sines of the motion positions."""
