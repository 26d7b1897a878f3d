"""Kernels: RMSNorm and rotary positions of queries and keys, and the gradients of both.

Arithmetic of `layers.norm_and_rotate` in fp32, on queries and keys where they stand in the product
that they come from. Each head of each token is computed by itself; the norms' own gradients are
summed program by program, so that the bits are the same at every run.

Shapes: B rows, L tokens, H heads, E head width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hymotion_ray.model.layers import EPS

_HEADS_AT_ONCE, _WARPS = 64, 4
"""Heads of tokens that a program takes, and its warps."""


@triton.jit
def _turned(x, cos, sin, BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each pair of x (BLOCK, WIDTH) turned by its angle."""
    even, odd = tl.split(tl.reshape(x, (BLOCK, WIDTH // 2, 2)))
    turned = tl.join(even * cos - odd * sin, even * sin + odd * cos)
    return tl.reshape(turned, (BLOCK, WIDTH))


@triton.jit
def _angles(table_ptr, position, inside, num_tokens, E: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cosines and sines of the positions, (BLOCK, WIDTH / 2)."""
    pair = tl.arange(0, WIDTH // 2)
    at = table_ptr + position[:, None] * (E // 2) + pair[None, :]
    mask = inside[:, None] & (pair < E // 2)[None, :]
    cos = tl.load(at, mask=mask, other=1.0)
    return cos, tl.load(at + num_tokens * (E // 2), mask=mask, other=0.0)


@triton.jit
def _rotate_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr, q_norm_ptr, k_norm_ptr, table_ptr, q_ptr, k_ptr,
    num_rows, num_tokens, row_stride, token_stride, eps,
    HEADS: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head_row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token, head = head_row // HEADS, head_row % HEADS
    row, position = token // num_tokens, token % num_tokens
    inside = row < num_rows
    column = tl.arange(0, WIDTH)
    mask = inside[:, None] & (column < E)[None, :]
    source = row.to(tl.int64) * row_stride + position * token_stride + head * E
    source = source[:, None] + column[None, :]
    target = head_row.to(tl.int64)[:, None] * E + column[None, :]
    cos, sin = _angles(table_ptr, position, inside, num_tokens, E, WIDTH)
    for part in tl.static_range(2):
        norm_ptr, out_ptr = (q_norm_ptr, q_ptr) if part == 0 else (k_norm_ptr, k_ptr)
        x = tl.load(qkv_ptr + source + part * HEADS * E, mask=mask, other=0.0).to(tl.float32)
        inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / E + eps)
        weight = tl.load(norm_ptr + column, mask=column < E, other=0.0).to(tl.float32)
        x = _turned(x * inverse[:, None] * weight[None, :], cos, sin, BLOCK, WIDTH)
        tl.store(out_ptr + target, x.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rotate_back_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr, q_norm_ptr, k_norm_ptr, table_ptr, grad_q_ptr, grad_k_ptr, to_qkv_ptr, to_norms_ptr,
    num_rows, num_tokens, row_stride, token_stride, eps,
    HEADS: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head_row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token, head = head_row // HEADS, head_row % HEADS
    row, position = token // num_tokens, token % num_tokens
    inside = row < num_rows
    column = tl.arange(0, WIDTH)
    mask = inside[:, None] & (column < E)[None, :]
    source = row.to(tl.int64) * row_stride + position * token_stride + head * E
    source = source[:, None] + column[None, :]
    dense = head_row.to(tl.int64)[:, None] * E + column[None, :]
    target = (token.to(tl.int64) * 3 * HEADS + head)[:, None] * E + column[None, :]
    cos, sin = _angles(table_ptr, position, inside, num_tokens, E, WIDTH)
    for part in tl.static_range(2):
        norm_ptr, grad_ptr = (q_norm_ptr, grad_q_ptr) if part == 0 else (k_norm_ptr, grad_k_ptr)
        grad = tl.load(grad_ptr + dense, mask=mask, other=0.0).to(tl.float32)
        grad = _turned(grad, cos, -sin, BLOCK, WIDTH)
        x = tl.load(qkv_ptr + source + part * HEADS * E, mask=mask, other=0.0).to(tl.float32)
        inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / E + eps)
        unit = x * inverse[:, None]
        weight = tl.load(norm_ptr + column, mask=column < E, other=0.0).to(tl.float32)
        to_norm = tl.sum(grad * unit, axis=0)
        place = (tl.program_id(0) * 2 + part) * E + column
        tl.store(to_norms_ptr + place, to_norm, mask=column < E)
        grad = grad * weight[None, :]
        along = tl.sum(grad * unit, axis=1) / E
        to_x = inverse[:, None] * (grad - unit * along[:, None])
        tl.store(
            to_qkv_ptr + target + part * HEADS * E, to_x.to(to_qkv_ptr.dtype.element_ty), mask=mask
        )


def rotate(
    qkv_BL3HE: Tensor, q_norm: Tensor, k_norm: Tensor, table: Tensor
) -> tuple[Tensor, Tensor]:
    """Queries and keys (B, L, H, E) of qkv, normed and rotated.

    q_norm and k_norm (E,): the norms' weights; table (2, L, 1, E/2) fp32 cosines and sines. A
    token of qkv lies in one piece.
    """
    rows, length, _, heads, width = qkv_BL3HE.shape
    q, k = (qkv_BL3HE.new_empty(rows, length, heads, width) for _ in range(2))
    _rotate_kernel[(triton.cdiv(rows * length * heads, _HEADS_AT_ONCE),)](
        qkv_BL3HE, q_norm, k_norm, table, q, k, *_sizes(qkv_BL3HE), **_constants(qkv_BL3HE)
    )
    return q, k


def rotate_back(
    qkv_BL3HE: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    table: Tensor,
    grad_q: Tensor,
    grad_k: Tensor,
    to_qkv: Tensor,
) -> tuple[Tensor, Tensor]:
    """Write the gradients of queries and keys into to_qkv (B, L, 3, H, E), contiguous.

    grad_q and grad_k (B, L, H, E): those of `rotate`'s results, contiguous. Returns those of the
    norms' weights, (E,) fp32.
    """
    rows, length, _, heads, width = qkv_BL3HE.shape
    programs = triton.cdiv(rows * length * heads, _HEADS_AT_ONCE)
    to_norms = qkv_BL3HE.new_empty(programs, 2, width, dtype=torch.float32)
    _rotate_back_kernel[(programs,)](
        qkv_BL3HE, q_norm, k_norm, table, grad_q, grad_k, to_qkv, to_norms,
        *_sizes(qkv_BL3HE), **_constants(qkv_BL3HE),
    )  # fmt: skip
    return to_norms[:, 0].sum(0), to_norms[:, 1].sum(0)


def _sizes(qkv_BL3HE: Tensor) -> tuple[int | float, ...]:
    return (*qkv_BL3HE.shape[:2], *qkv_BL3HE.stride()[:2], EPS)


def _constants(qkv_BL3HE: Tensor) -> dict[str, int]:
    heads, width = qkv_BL3HE.shape[3:]
    return {
        "HEADS": heads,
        "E": width,
        "WIDTH": max(16, triton.next_power_of_2(width)),
        "BLOCK": _HEADS_AT_ONCE,
        "num_warps": _WARPS,
    }
