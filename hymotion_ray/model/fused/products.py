"""The matrix products of a block, as the fused network does them: in 16 bits, or in float8.

Products in 16 bits stay with cuBLAS, GELU in their epilogue. In float8 every operand is scaled by
token or by output channel (`float8.py`); GELU is then taken while its result is scaled.

Shapes: B rows, L tokens, D width.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from hymotion_ray.model.blocks import DoubleBlock, SingleBlock
from hymotion_ray.model.float8 import Float8Linear
from hymotion_ray.model.fused.quantize import quantized
from hymotion_ray.model.layers import GeluMlp


class MotionProducts(Protocol):
    """Products of one block's motion half."""

    def first(self, normed_BLD: Tensor) -> tuple[Tensor, Tensor | None]:
        """Queries, keys and values (B, L, >= 3 D); of a single block also its hidden features."""

    def out(self, seen_BLD: Tensor) -> Tensor:
        """A double block's output of attention (B, L, D)."""

    def mlp(self, normed_BLD: Tensor) -> Tensor:
        """A double block's MLP (B, L, D)."""

    def last(self, seen_BLD: Tensor, hidden: Tensor | None) -> Tensor:
        """A single block's output (B, L, D)."""


class Products16:
    """Motion's products in the weights' own 16 bits."""

    def __init__(self, block: DoubleBlock | SingleBlock) -> None:
        self.block = block

    def first(self, normed_BLD: Tensor) -> tuple[Tensor, Tensor | None]:
        """As `MotionProducts.first`; hidden features are activated."""
        if isinstance(self.block, DoubleBlock):
            return self.block.motion_qkv(normed_BLD), None
        return first_products(self.block, normed_BLD)

    def out(self, seen_BLD: Tensor) -> Tensor:
        """As `MotionProducts.out`."""
        assert isinstance(self.block, DoubleBlock)
        return self.block.motion_out_proj(seen_BLD)

    def mlp(self, normed_BLD: Tensor) -> Tensor:
        """As `MotionProducts.mlp`."""
        assert isinstance(self.block, DoubleBlock)
        return mlp(self.block.motion_mlp, normed_BLD)

    def last(self, seen_BLD: Tensor, hidden: Tensor | None) -> Tensor:
        """As `MotionProducts.last`."""
        assert isinstance(self.block, SingleBlock)
        return last_products(self.block, seen_BLD, hidden)


class Products8:
    """Motion's products in float8, from copies of the weights."""

    def __init__(self, block: DoubleBlock | SingleBlock) -> None:
        if isinstance(block, DoubleBlock):
            parts = block.motion_qkv, block.motion_out_proj, block.motion_mlp.fc1
            self._first, self._out, self._fc1 = map(Float8Linear.of, parts)
            self._last = Float8Linear.of(block.motion_mlp.fc2)
            self._hidden_at = None
        else:
            self._first = Float8Linear.of(block.linear1)
            self._last = Float8Linear.of(block.linear2)
            self._hidden_at = block.split[0]

    def first(self, normed_BLD: Tensor) -> tuple[Tensor, Tensor | None]:
        """As `MotionProducts.first`, in one product; hidden features are not activated yet."""
        both = _float8(self._first, normed_BLD, None)
        return both, None if self._hidden_at is None else both[..., self._hidden_at :]

    def out(self, seen_BLD: Tensor) -> Tensor:
        """As `MotionProducts.out`."""
        return _float8(self._out, seen_BLD, None)

    def mlp(self, normed_BLD: Tensor) -> Tensor:
        """As `MotionProducts.mlp`."""
        return _float8(self._last, None, _float8(self._fc1, normed_BLD, None))

    def last(self, seen_BLD: Tensor, hidden: Tensor | None) -> Tensor:
        """As `MotionProducts.last`."""
        return _float8(self._last, seen_BLD, hidden)


def _float8(linear: Float8Linear, plain: Tensor | None, hidden: Tensor | None) -> Tensor:
    """The product of `plain` and the GELU of `hidden`, joined."""
    shape = (plain if plain is not None else hidden).shape  # type: ignore[union-attr]
    return linear.product(*quantized(plain, hidden)).view(*shape[:-1], -1)


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Tanh GELU of a linear layer, in the product's epilogue on GPUs."""
    if not x.is_cuda:
        return F.gelu(F.linear(x, weight, bias), approximate="tanh")
    flat = x.reshape(-1, x.shape[-1])
    out: Tensor = torch._addmm_activation(bias, flat, weight.T, use_gelu=True)
    return out.view(*x.shape[:-1], -1)


def mlp(layers: GeluMlp, x: Tensor) -> Tensor:
    """Linear, tanh GELU, Linear."""
    return layers.fc2(gelu_linear(x, layers.fc1.weight, layers.fc1.bias))


def first_products(block: SingleBlock, normed: Tensor) -> tuple[Tensor, Tensor]:
    """`linear1` in two: qkv, and the activated hidden features."""
    weight, bias = block.linear1.weight, block.linear1.bias
    cut = block.split[0]
    qkv = F.linear(normed, weight[:cut], bias[:cut])
    return qkv, gelu_linear(normed, weight[cut:], bias[cut:])


def last_products(block: SingleBlock, seen: Tensor, hidden: Tensor | None) -> Tensor:
    """`linear2` of both inputs without joining them: two products into one sum."""
    assert hidden is not None, "a single block has hidden features"
    weight = block.linear2.weight
    y = F.linear(seen, weight[:, : block.dim], block.linear2.bias)
    y.view(-1, block.dim).addmm_(hidden.view(-1, hidden.shape[-1]), weight[:, block.dim :].T)
    return y
