"""Small layers that several blocks share: modulation, gated norms, MLP. Knows no streams.

Shapes: B rows, S tokens, D width, H heads, E head width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hymotion_ray.model.activations import gelu_tanh
from hymotion_ray.model.linear import Linear
from hymotion_ray.model.rope import rotate

EPS = 1e-6
"""Epsilon of every norm in the network."""


class Modulation(nn.Module):
    """`num_chunks` (= n) vectors of width D from SiLU of the adapter: (B, 1, D) -> (B, 1, n D)."""

    def __init__(self, dim: int, num_chunks: int) -> None:
        super().__init__()
        self.linear = Linear(dim, num_chunks * dim)

    def forward(self, silu_a_B1D: Tensor) -> Tensor:
        """Project; the caller applies SiLU once for all blocks."""
        return self.linear(silu_a_B1D)


class GeluMlp(nn.Module):
    """Linear, tanh GELU, Linear over the last dimension."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden_dim)
        self.fc2 = Linear(hidden_dim, dim)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Transform each token by itself."""
        return self.fc2(gelu_tanh(self.fc1(x_BSD)))


def modulate(x_BSD: Tensor, shift_B1D: Tensor, scale_B1D: Tensor) -> Tensor:
    """`LayerNorm(x) * (1 + scale) + shift`, the norm without weights.

    Source: adaLN of Peebles & Xie, Scalable diffusion models with transformers (2022), section 3.2.
    """
    return F.layer_norm(x_BSD, x_BSD.shape[-1:], eps=EPS) * (1 + scale_B1D) + shift_B1D


def norm_and_rotate(x_BSHE: Tensor, norm: nn.RMSNorm, rope: Tensor | None) -> Tensor:
    """RMSNorm over the head width, then rotary positions, both in fp32; returns x's dtype."""
    normed = F.rms_norm(x_BSHE.float(), norm.normalized_shape, norm.weight.float(), EPS)
    return (normed if rope is None else rotate(normed, rope)).to(x_BSHE.dtype)
