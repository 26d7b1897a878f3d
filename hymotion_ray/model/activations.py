"""SiLU and tanh GELU whose bits do not depend on where a row lies in its batch.

On CPU, torch's SiLU and GELU kernels treat the last few elements of each thread's share with other
code than the rest, and the two differ in the last bit (seen in torch 2.13 with AVX-512; exp, tanh,
LayerNorm, matrix products and attention showed no such thing). So in inference each row is a call
of its own: its shape, and with it the place of those last elements, is then always the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def silu(x: Tensor) -> Tensor:
    """`x * sigmoid(x)` of x (B, ...); the bits of x[i] depend on x[i] and its shape alone."""
    return _by_row(torch.ops.aten.silu.default, torch.ops.aten.silu.out, x)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh form of x (B, ...); the bits of x[i] depend on x[i] and its shape alone."""
    return _by_row(_gelu, _gelu_out, x)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _gelu_out(x: Tensor, *, out: Tensor) -> Tensor:
    return torch.ops.aten.gelu.out(x, approximate="tanh", out=out)


def _by_row(function: Callable[[Tensor], Tensor], into: Callable[..., Tensor], x: Tensor) -> Tensor:
    if x.device.type != "cpu" or torch.is_grad_enabled() or len(x) == 1:
        return function(x)
    out = torch.empty_like(x)
    for row_in, row_out in zip(x, out, strict=True):
        into(row_in, out=row_out)
    return out
