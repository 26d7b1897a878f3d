"""Embeddings of the time t and of single vectors: the parts of the adapter. Knows no tokens.

Shapes: T rows, D width, V input width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hymotion_ray.model.activations import silu
from hymotion_ray.model.linear import Linear


def sinusoid(t_T: Tensor, dim: int, time_factor: float) -> Tensor:
    """(T, dim) fp32: cosines, then sines, of t * time_factor * 10000^(-i / (dim/2)).

    Source: Vaswani et al., Attention is all you need (2017), section 3.5; order of the halves as in
    docs/network.md. `dim` is even.
    """
    half = dim // 2
    power = torch.arange(half, dtype=torch.float32, device=t_T.device) / half
    angles = torch.outer(t_T.float() * time_factor, 10000.0**-power)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class TimeMlp(nn.Module):
    """Sinusoid of t, Linear, SiLU, Linear: (T,) -> (T, D)."""

    def __init__(self, dim: int, time_factor: float) -> None:
        super().__init__()
        self.dim = dim
        self.time_factor = time_factor
        self.blocks = nn.Sequential(Linear(dim, dim), nn.SiLU(), Linear(dim, dim))

    def forward(self, t_T: Tensor) -> Tensor:
        """Embed times t in [0, 1]."""
        first, _, last = self.blocks
        dtype = next(self.parameters()).dtype
        wave_TD = sinusoid(t_T, self.dim, self.time_factor).to(dtype)
        return last(silu(first(wave_TD)))


class VectorMlp(nn.Module):
    """Linear, SiLU, Linear: (T, V) -> (T, D)."""

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.linears = nn.Sequential(Linear(input_dim, dim), nn.SiLU(), Linear(dim, dim))

    def forward(self, vector_TV: Tensor) -> Tensor:
        """Embed one vector a row."""
        first, _, last = self.linears
        return last(silu(first(vector_TV)))
