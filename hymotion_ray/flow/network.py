"""What the sampler asks of a network: the two halves of a velocity and what passes between them.

A protocol, so that this room knows the network as an object only; `hymotion_ray.model.MotionMMDiT`
is what fits it.

Shapes: T text rows (pairs of prompt and time), B motion rows, L frames, N text tokens.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import torch
from torch import Tensor


class TextRows(Protocol):
    """The text half's result, one row a pair of prompt and time."""

    @property
    def num_bytes(self) -> int:
        """Memory of all rows."""

    def __len__(self) -> int:
        """How many rows there are."""

    def rows(self, index: Tensor) -> TextRows:
        """The rows at `index`, copied."""

    @property
    def key(self) -> Hashable:
        """Where their memory lies, and its shape."""

    def pick(self, index: Tensor) -> TextRows:
        """The rows at `index`, to be read before the next `write`; copied or not."""

    def write(self, index: Tensor, source: Any) -> None:
        """Overwrite the rows at `index` with the first rows of `source`."""


class Network(Protocol):
    """A velocity network whose text half does not depend on the motion.

    One with a true attribute `replays` reads nothing back to the host in `motion_stream` and gives
    layouts that know `clone` and `copy_`: its calls are captured in CUDA graphs. One with a method
    `text_stream_into(rows, index, ...)` writes the text half where it is wanted, without a copy.
    """

    @property
    def train_frames(self) -> int:
        """Frames of the training window."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    def to(self, dtype: torch.dtype, /) -> Any:
        """Itself, with its weights in `dtype`."""

    def text_stream(
        self, context: Tensor, vector: Tensor, t: Tensor, context_length: Tensor, /
    ) -> Any:
        """The text half of context (T, N, C), vector (T, 1, V), t (T,), context_length (T,)."""

    def empty_text_rows(self, num_rows: int, num_tokens: int) -> Any:
        """Unwritten memory for `num_rows` rows of the text half's result."""

    def text_row_bytes(self, num_tokens: int) -> int:
        """Memory of one of them."""

    def repeat_token(self, text: Any, num_tokens: int, /) -> Any:
        """The text half of `num_tokens` equal tokens, from that of one such token."""

    def motion_layout(
        self, x_length: Tensor, context_length: Tensor, num_frames: int, num_tokens: int, /
    ) -> Any:
        """Masks and positions of a batch."""

    def motion_stream(self, x: Tensor, text: Any, layout: Any, /) -> Tensor:
        """Velocity (B, L, 201) of x (B, L, 201)."""
