"""Rows parallel: every process computes its share of a batch's motion rows.

With guidance a batch holds the text rows, then the null rows: over two processes one computes the
velocity under the text and the other that without it (guidance parallel). Weights are whole
everywhere, and so is the text half, which is small and shared by a prompt's seeds.
"""

from __future__ import annotations

from torch import Tensor

from hymotion_ray.config.fields import require
from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.model.split.shared import SharedNetwork
from hymotion_ray.model.split.wire import Wire
from hymotion_ray.model.streams import MotionLayout, TextStream


class RowSplit(SharedNetwork):
    """A network whose motion rows are shared out; what a sampler asks of a network."""

    def __init__(self, network: MotionMMDiT, wire: Wire) -> None:
        super().__init__(network)
        self.wire = wire
        self.num_rows = 0
        """Motion rows this process computed."""

    def text_stream(
        self, context: Tensor, vector: Tensor, t: Tensor, context_length: Tensor
    ) -> TextStream:
        """The text half, whole on every process."""
        return self.network.text_stream(context, vector, t, context_length)

    def empty_text_rows(self, num_rows: int, num_tokens: int) -> TextStream:
        """Unwritten memory for text rows."""
        return self.network.empty_text_rows(num_rows, num_tokens)

    def motion_stream(self, x: Tensor, text: TextStream, layout: MotionLayout) -> Tensor:
        """Velocity (B, L, 201) of the whole batch, of which this process computes its share.

        Raises `ConfigError` where B is no multiple of the number of processes.
        """
        size = self.wire.size
        require(
            len(x) % size == 0, "rows of a batch", len(x), f"a multiple of the {size} processes"
        )
        share = len(x) // size
        own = slice(self.wire.rank * share, (self.wire.rank + 1) * share)
        self.num_rows += share
        text = TextStream(text.keys[own], text.values[own], text.modulation[own])
        v = self.network.motion_stream(x[own], text, MotionLayout(layout.mask[own], layout.rope))
        return self.wire.join(v, dim=0)
