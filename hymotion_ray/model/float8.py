"""Matrix products of eight-bit floats (e4m3): an approximate mode of the motion half.

Weights are scaled by output channel once, activations by token at each product, so that a token's
bits depend on that token alone. Sums are in fp32 and leave in the network's own dtype.
`fused/products.py` is how GPUs do it; `reference_motion` is the same in plain torch, on any device:
the yardstick of the kernels and of the mode's distance from the exact one.

Shapes: M tokens, K inputs, N outputs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hymotion_ray.model.blocks import DoubleBlock
from hymotion_ray.model.linear import Linear
from hymotion_ray.model.mmdit import MotionMMDiT

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest number of this format, which the largest of each row is scaled to."""
LEAST = 1e-12
"""Rows of smaller numbers are scaled as if this were their largest."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Float8 numbers (..., K) and their scale (..., 1) fp32, whose product is `x` (..., K)."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True).clamp(min=LEAST)
    return (x * (LARGEST / largest)).to(FLOAT8), largest / LARGEST


@dataclass(frozen=True)
class Float8Linear:
    """A linear layer's weights (N, K) in float8."""

    weight: Tensor
    scale: Tensor
    """(1, N) fp32."""
    bias: Tensor | None
    dtype: torch.dtype
    """Of the results."""

    @classmethod
    def of(cls, linear: Linear) -> Float8Linear:
        """The layer in float8; K and N are multiples of 16."""
        weight, scale = quantize_rows(linear.weight.detach())
        bias = None if linear.bias is None else linear.bias.detach()
        return cls(weight, scale.T.contiguous(), bias, linear.weight.dtype)

    def product(self, values_MK: Tensor, scale_M1: Tensor) -> Tensor:
        """(M, N) of quantized rows."""
        out: Tensor = torch._scaled_mm(
            values_MK, self.weight.T, scale_a=scale_M1, scale_b=self.scale, bias=self.bias,
            out_dtype=self.dtype, use_fast_accum=True,
        )  # fmt: skip
        return out


class Float8Module(nn.Module):
    """`Float8Linear` in the place of a layer of the plain network."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear = Float8Linear.of(linear)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        values, scale = quantize_rows(x.reshape(-1, x.shape[-1]))
        return self.linear.product(values, scale).view(*x.shape[:-1], -1)


def reference_motion(network: MotionMMDiT) -> MotionMMDiT:
    """A copy whose `motion_stream` does the products of its blocks in float8.

    Its text half is spoilt, since single blocks share weights: take that of `network`.
    """
    network = copy.deepcopy(network)
    for block in network.blocks:
        owners: list[tuple[nn.Module, str]] = [(block, "linear1"), (block, "linear2")]
        if isinstance(block, DoubleBlock):
            owners = [(block, "motion_qkv"), (block, "motion_out_proj")]
            owners += [(block.motion_mlp, "fc1"), (block.motion_mlp, "fc2")]
        for owner, name in owners:
            setattr(owner, name, Float8Module(getattr(owner, name)))
    return network
