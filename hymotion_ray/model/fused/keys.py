"""Kernel: RMSNorm and rotary positions of keys, in fp32, in place or into the text rows.

Arithmetic of `layers.norm_and_rotate`. Each head of each token is computed by itself.

Shapes: B rows, L tokens, H heads, E head width (64), F features of a token in the product that the
keys come from.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hymotion_ray.model.fused.choose import HEAD_DIM
from hymotion_ray.model.layers import EPS

BLOCK, WARPS = 16, 2
"""Heads of tokens a program takes, and its warps: measured on an H200."""


@triton.jit
def rotated(x, weight_ptr, table_ptr, position, num_positions, eps, ROWS, ROPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """RMSNorm of x (ROWS, 64) fp32, then each pair turned by the angle of its row's position."""
    at = tl.arange(0, 64)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / 64 + eps)
    x = x * inverse[:, None] * tl.load(weight_ptr + at).to(tl.float32)[None, :]
    if ROPE:
        pair = tl.arange(0, 32)
        angle = position[:, None] * 32 + pair[None, :]
        known = (position < num_positions)[:, None]
        cos = tl.load(table_ptr + angle, mask=known, other=1.0)
        sin = tl.load(table_ptr + num_positions * 32 + angle, mask=known, other=0.0)
        even, odd = tl.split(tl.reshape(x, (ROWS, 32, 2)))
        x = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (ROWS, 64))
    return x


@triton.jit
def _keys_kernel(  # type: ignore[no-untyped-def]
    source_ptr,
    weight_ptr,
    table_ptr,
    keys_ptr,
    values_ptr,
    index_ptr,
    num_rows,
    num_tokens,
    source_stride,
    key_at,
    value_at,
    row_stride,
    token_stride,
    eps: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROPE: tl.constexpr,
    COPY_VALUES: tl.constexpr,
    HAS_INDEX: tl.constexpr,
):
    head_row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token, head = head_row // HEADS, head_row % HEADS
    inside = (token < num_rows * num_tokens)[:, None]
    at = head[:, None] * 64 + tl.arange(0, 64)[None, :]
    source = source_ptr + token.to(tl.int64)[:, None] * source_stride + at
    row, position = token // num_tokens, token % num_tokens
    if HAS_INDEX:
        row = tl.load(index_ptr + row, mask=token < num_rows * num_tokens, other=0)
    place = row.to(tl.int64) * row_stride + position * token_stride
    x = tl.load(source + key_at, mask=inside, other=0.0).to(tl.float32)
    x = rotated(x, weight_ptr, table_ptr, position, num_tokens, eps, BLOCK, ROPE)
    tl.store(keys_ptr + place[:, None] + at, x.to(keys_ptr.dtype.element_ty), mask=inside)
    if COPY_VALUES:
        v = tl.load(source + value_at, mask=inside, other=0.0)
        tl.store(values_ptr + place[:, None] + at, v, mask=inside)


def keys_in_place(qkv_BLF: Tensor, weight: Tensor, table: Tensor, num_heads: int) -> None:
    """Norm and rotate the keys of qkv (B, L, 3 H E), which hold its second third."""
    assert qkv_BLF.is_contiguous(), "rows follow each other"
    num_tokens = qkv_BLF.shape[1]
    width = num_heads * HEAD_DIM
    keys = qkv_BLF[..., width:]
    _launch(
        qkv_BLF, weight, table, keys, None, None, num_heads, width,
        (num_tokens * qkv_BLF.stride(1), qkv_BLF.stride(1)),
    )  # fmt: skip


def keys_and_values(
    source_TNF: Tensor,
    weight: Tensor,
    table: Tensor | None,
    num_heads: int,
    key_at: int,
    keys_TNHE: Tensor,
    values_TNHE: Tensor,
    index_T: Tensor | None,
) -> None:
    """Write normed and rotated keys, and the values, of text tokens into (.., N, H, E) each.

    Row t goes to row `index[t]`, without an index to row t. In a token's features of `source`
    (T, N, F) the keys start at `key_at`, the values stand after them. `table` None: no rotation.
    """
    _launch(
        source_TNF, weight, table, keys_TNHE, values_TNHE, index_T, num_heads, key_at,
        (keys_TNHE.stride(0), keys_TNHE.stride(1)),
    )  # fmt: skip


def _launch(
    source: Tensor,
    weight: Tensor,
    table: Tensor | None,
    keys: Tensor,
    values: Tensor | None,
    index: Tensor | None,
    num_heads: int,
    key_at: int,
    strides: tuple[int, int],
) -> None:
    num_rows, num_tokens, _ = source.shape
    _keys_kernel[(triton.cdiv(num_rows * num_tokens * num_heads, BLOCK),)](
        source,
        weight,
        weight if table is None else table,
        keys,
        keys if values is None else values,
        weight if index is None else index,
        num_rows,
        num_tokens,
        source.stride(1),
        key_at,
        key_at + num_heads * HEAD_DIM,
        strides[0],
        strides[1],
        eps=EPS,
        HEADS=num_heads,
        BLOCK=BLOCK,
        ROPE=table is not None,
        COPY_VALUES=values is not None,
        HAS_INDEX=index is not None,
        num_warps=WARPS,
    )
