"""Linear layers whose bits do not depend on where a row lies in its batch.

MKL's fp32 product computes the last rows of a share of the work with another kernel than the rest
when the row count is no multiple of four, and rows that start at different alignments in different
ways when the inner dimension is no multiple of four; either changes last bits (torch 2.13 with MKL
2024.2 on an AVX-512 machine, two and more threads). So in inference on CPU both are padded with
zeros to a multiple of 16, which adds exact zeros. The shapes that the sampler uses by default need
this for the 201 inputs only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MULTIPLE = 16


class Linear(nn.Linear):
    """`nn.Linear`, in inference on CPU with rows that do not depend on each other, to the bit."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias` over the last dimension."""
    if x.device.type != "cpu" or torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    num_inputs = x.shape[-1]
    num_rows = x.numel() // num_inputs
    missing_rows = -num_rows % MULTIPLE
    missing_inputs = -num_inputs % MULTIPLE
    if missing_inputs:
        weight = F.pad(weight, (0, missing_inputs))
    if missing_rows or missing_inputs:
        flat = F.pad(x.reshape(num_rows, num_inputs), (0, missing_inputs, 0, missing_rows))
        return F.linear(flat, weight, bias)[:num_rows].view(*x.shape[:-1], -1)
    return F.linear(x, weight, bias)
