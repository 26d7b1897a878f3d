"""Weight-only int8 of a language model: each output's weights as whole numbers and one scale.

Half the memory of bfloat16, for cards that the exact encoder does not fit; features are near, not
equal. Activations stay as they are, so that a text's features do not depend on its batch mates
(activation quantisation by outlier columns, as in LLM.int8(), would make them). Needs torch alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MOST = 127


class Int8Linear(nn.Module):
    """A linear layer whose weight is int8 times a float32 scale for each output."""

    weight: Tensor
    """(out, in) int8."""
    scale: Tensor
    """(out,) float32; the largest weight of each output over 127."""
    bias: Tensor | None

    def __init__(self, exact: nn.Linear) -> None:
        super().__init__()
        weight = exact.weight.detach().float()
        largest = weight.abs().amax(dim=1)
        scale = torch.where(largest > 0, largest / _MOST, torch.ones_like(largest))
        whole = (weight / scale[:, None]).round_().clamp_(-_MOST, _MOST)
        self.register_buffer("weight", whole.to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if exact.bias is None else exact.bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), in x's dtype. Whole numbers up to 127 are exact in any dtype."""
        y = F.linear(x, self.weight.to(x.dtype)).float() * self.scale
        return (y if self.bias is None else y + self.bias).to(x.dtype)


def quantise(model: nn.Module, dtype: torch.dtype) -> None:
    """Make every linear layer of `model` int8, in place, and give its other weights `dtype`.

    Layer by layer, so that no more than one of them is there twice. What is no weight (rotary
    tables) keeps its dtype.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
