"""Kernel: gated residual, LayerNorm and modulation in one pass over the tokens.

Arithmetic of `layers.modulate` with sums in fp32 and one rounding at the end. Each token is one
program's own, so its bits do not depend on the others.

Shapes: B rows, L tokens, D width, T text rows, C width of all modulations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hymotion_ray.model.layers import EPS

WARPS = 2
"""Warps of a program: measured on an H200."""


@triton.jit
def _gated_norm_kernel(  # type: ignore[no-untyped-def]
    h_ptr,
    y_ptr,
    modulation_ptr,
    index_ptr,
    sum_ptr,
    out_ptr,
    num_tokens,
    modulation_stride,
    gate_at,
    shift_at,
    scale_at,
    eps: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_INDEX: tl.constexpr,
):
    token = tl.program_id(0)
    row = token // num_tokens
    if HAS_INDEX:
        row = tl.load(index_ptr + row)
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    own = token.to(tl.int64) * WIDTH + at
    modulation = modulation_ptr + row.to(tl.int64) * modulation_stride + at
    h = tl.load(h_ptr + own, mask=inside, other=0.0).to(tl.float32)
    if HAS_Y:
        y = tl.load(y_ptr + own, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(modulation + gate_at, mask=inside, other=0.0).to(tl.float32)
        total = (h + gate * y).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + own, total, mask=inside)
        h = total.to(tl.float32)
    shift = tl.load(modulation + shift_at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(modulation + scale_at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(h, axis=0) / WIDTH
    centred = tl.where(inside, h - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / WIDTH
    normed = centred * (1.0 / tl.sqrt(variance + eps))
    out = normed * (1.0 + scale) + shift
    tl.store(out_ptr + own, out.to(out_ptr.dtype.element_ty), mask=inside)


def gated_norm(
    h_BLD: Tensor,
    y_BLD: Tensor | None,
    modulation_TC: Tensor,
    index_B: Tensor | None,
    gate_at: int,
    shift_at: int,
) -> Tensor:
    """`modulate(h + gate * y)` (B, L, D); `h` is overwritten with the sum.

    h, y (B, L, D) contiguous, y None for no residual; modulation (T, C), of which row `index[b]`
    (b without an index) is clip b's. The gate stands at `gate_at`, the shift at `shift_at`, the
    scale one width after the shift.
    """
    num_rows, num_tokens, width = h_BLD.shape
    out_BLD = torch.empty_like(h_BLD)
    _gated_norm_kernel[(num_rows * num_tokens,)](
        h_BLD,
        h_BLD if y_BLD is None else y_BLD,
        modulation_TC,
        modulation_TC if index_B is None else index_B,
        h_BLD,
        out_BLD,
        num_tokens,
        modulation_TC.stride(0),
        gate_at,
        shift_at,
        shift_at + width,
        eps=EPS,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        HAS_Y=y_BLD is not None,
        HAS_INDEX=index_B is not None,
        num_warps=WARPS,
    )
    return out_BLD
