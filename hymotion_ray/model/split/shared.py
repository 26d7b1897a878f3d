"""What networks that are computed elsewhere or in parts pass on to the one that they hold."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.model.streams import MotionLayout, TextStream


class SharedNetwork:
    """The part of what a sampler asks of a network that is the same wherever its work is done."""

    def __init__(self, network: MotionMMDiT) -> None:
        self.network = network

    @property
    def train_frames(self) -> int:
        """Frames of the training window."""
        return self.network.train_frames

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.network.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.device

    def to(self, dtype: torch.dtype) -> Self:
        """Itself, with its weights in `dtype`."""
        self.network.to(dtype)
        return self

    def text_row_bytes(self, num_tokens: int) -> int:
        """Memory of one text row of the whole network, so that all processes plan alike."""
        return self.network.text_row_bytes(num_tokens)

    def repeat_token(self, text: TextStream, num_tokens: int) -> TextStream:
        """The text half of equal tokens, from one of them."""
        return self.network.repeat_token(text, num_tokens)

    def motion_layout(
        self, x_length: Tensor, context_length: Tensor, num_frames: int, num_tokens: int
    ) -> MotionLayout:
        """Masks and positions of the whole batch."""
        return self.network.motion_layout(x_length, context_length, num_frames, num_tokens)
