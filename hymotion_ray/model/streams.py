"""What the two halves of the network hand to each other. Knows no weights.

Shapes: T text rows (pairs of prompt and time), K blocks, N text tokens, H heads, E head width,
C width of all modulations together, B motion rows, L motion tokens, S = L + N.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

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

    @property
    def key(self) -> Hashable:
        """Where the memory lies, and its shape."""
        parts = self.keys, self.values, self.modulation
        return (self.keys.shape, *(part.data_ptr() for part in parts))

    def rows(self, index: Tensor) -> TextStream:
        """The rows at `index` (int64, on the same device), copied."""
        return TextStream(self.keys[index], self.values[index], self.modulation[index])

    def pick(self, index: Tensor) -> TextStream:
        """The rows at `index`, to be read before the next `write`: here a copy."""
        return self.rows(index)

    def write(self, index: Tensor, source: TextStream) -> None:
        """Overwrite the rows at `index` with the first rows of `source`."""
        num_rows = len(index)
        self.keys[index] = source.keys[:num_rows]
        self.values[index] = source.values[:num_rows]
        self.modulation[index] = source.modulation[:num_rows]


@dataclass(frozen=True)
class MotionLayout:
    """Who sees whom in a batch of clips, and where its motion tokens stand; constant over steps."""

    mask: Tensor
    """(B, 1, L, S) additive, in the network's dtype."""
    rope: Tensor
    """(2, L, 1, E/2) fp32 cosines and sines of the motion positions."""
