"""Kernel: rows as float8 numbers with a scale of their own, a GELU taken along on the way.

Arithmetic of `float8.quantize_rows`, of what is joined without being copied together first. Each
token is one program's own, so its bits do not depend on the others.

Shapes: B rows, L tokens, K inputs of the product that follows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hymotion_ray.model.float8 import FLOAT8, LARGEST, LEAST

WARPS = 4


@triton.jit
def _gelu_tanh(x):  # type: ignore[no-untyped-def]
    """Half of x (1 + tanh u), which is x sigmoid(2 u)."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def _quantize_kernel(  # type: ignore[no-untyped-def]
    plain_ptr,
    hidden_ptr,
    out_ptr,
    scale_ptr,
    plain_stride,
    hidden_stride,
    least,
    LARGEST: tl.constexpr,
    PLAIN: tl.constexpr,
    HIDDEN: tl.constexpr,
    PLAIN_BLOCK: tl.constexpr,
    HIDDEN_BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    out = out_ptr + token * (PLAIN + HIDDEN)
    plain_at, hidden_at = tl.arange(0, PLAIN_BLOCK), tl.arange(0, HIDDEN_BLOCK)
    largest = least
    if PLAIN > 0:
        place = plain_ptr + token * plain_stride + plain_at
        x = tl.load(place, mask=plain_at < PLAIN, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(x), axis=0))
    if HIDDEN > 0:
        place = hidden_ptr + token * hidden_stride + hidden_at
        y = _gelu_tanh(tl.load(place, mask=hidden_at < HIDDEN, other=0.0).to(tl.float32))
        largest = tl.maximum(largest, tl.max(tl.abs(y), axis=0))
    tl.store(scale_ptr + token, largest / LARGEST)
    factor = LARGEST / largest
    if PLAIN > 0:
        values = (x * factor).to(out_ptr.dtype.element_ty)
        tl.store(out + plain_at, values, mask=plain_at < PLAIN)
    if HIDDEN > 0:
        values = (y * factor).to(out_ptr.dtype.element_ty)
        tl.store(out + PLAIN + hidden_at, values, mask=hidden_at < HIDDEN)


def quantized(plain_BLK: Tensor | None, hidden_BLK: Tensor | None) -> tuple[Tensor, Tensor]:
    """Float8 rows (B L, K) and scales (B L, 1) fp32 of `plain`, then the tanh GELU of `hidden`.

    Either may be None; each token's numbers stand side by side, tokens at a constant distance.
    """
    parts = [part for part in (plain_BLK, hidden_BLK) if part is not None]
    num_tokens = parts[0].shape[0] * parts[0].shape[1]
    widths = [0 if part is None else part.shape[-1] for part in (plain_BLK, hidden_BLK)]
    strides = [0 if part is None else part.stride(1) for part in (plain_BLK, hidden_BLK)]
    for part in parts:
        assert part.stride(-1) == 1, "a token's numbers stand side by side"
        assert part.stride(0) == part.shape[1] * part.stride(1), "tokens at a constant distance"
    out = torch.empty(num_tokens, sum(widths), dtype=FLOAT8, device=parts[0].device)
    scale = torch.empty(num_tokens, 1, dtype=torch.float32, device=parts[0].device)
    _quantize_kernel[(num_tokens,)](
        parts[0] if plain_BLK is None else plain_BLK,
        parts[0] if hidden_BLK is None else hidden_BLK,
        out,
        scale,
        *strides,
        LEAST,
        LARGEST=LARGEST,
        PLAIN=widths[0],
        HIDDEN=widths[1],
        PLAIN_BLOCK=triton.next_power_of_2(max(widths[0], 1)),
        HIDDEN_BLOCK=triton.next_power_of_2(max(widths[1], 1)),
        num_warps=WARPS,
    )
    return out, scale
