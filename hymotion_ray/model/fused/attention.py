"""Kernel: attention of a clip's frames to the frames near them and to their prompt's text.

Arithmetic of `attention.attention` under `attention.motion_mask`: scores and sums in fp32, blocks
of keys outside of the band are never read. Text keys are read from the text rows where they stand,
so that clips of one prompt share them. Queries are normed and rotated on the way in.

Each program computes some queries of one head of one row, in an order of keys that depends on that
row's lengths alone. The running softmax is that of Dao et al., FlashAttention (2022), algorithm 1.

Shapes: B rows, L queries, T text rows, N text tokens, H heads, E head width (64).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hymotion_ray.model.fused.choose import HEAD_DIM
from hymotion_ray.model.fused.keys import rotated
from hymotion_ray.model.layers import EPS

_LOG2_E = 1.4426950408889634
QUERIES, KEYS, WARPS, STAGES, REGISTERS = 64, 32, 4, 3, 96
"""Tile of a program, its warps, how many tiles of keys are on their way at once, and registers of a
thread, which decide how many programs a processor holds: measured on an H200."""
_NOWHERE = tl.constexpr(-(2**28))
"""A key position that no query sees."""
NO_BAND = 2**20
"""Band of a network in which every frame sees every frame."""


@triton.jit
def _add_keys(q, k, v, visible, score_scale, best, weight_sum, total):  # type: ignore[no-untyped-def]
    """One block of keys into the running softmax, whose base is 2."""
    scores = tl.where(visible, tl.dot(q, tl.trans(k)), float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, axis=1) * score_scale)
    weights = tl.exp2(scores * score_scale - new_best[:, None])
    shrink = tl.exp2(best - new_best)
    weight_sum = weight_sum * shrink + tl.sum(weights, axis=1)
    total = tl.dot(weights.to(v.dtype), v, total * shrink[:, None])
    return new_best, weight_sum, total


@triton.jit(do_not_specialize=["band"])
def _attention_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr,
    norm_ptr,
    table_ptr,
    text_key_ptr,
    text_value_ptr,
    index_ptr,
    num_frames_ptr,
    num_tokens_ptr,
    out_ptr,
    num_queries,
    token_stride,
    text_row_stride,
    text_token_stride,
    band,
    score_scale,
    eps: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    SEES_FRAMES: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    ROPE: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    first, head, row = tl.program_id(0) * QUERIES, tl.program_id(1), tl.program_id(2)
    width: tl.constexpr = HEADS * 64
    column = head * 64 + tl.arange(0, 64)
    query = first + tl.arange(0, QUERIES)
    own_ptr = qkv_ptr + row.to(tl.int64) * num_queries * token_stride
    q = tl.load(
        own_ptr + query[:, None] * token_stride + column[None, :],
        mask=(query < num_queries)[:, None],
        other=0.0,
    ).to(tl.float32)
    q = rotated(q, norm_ptr, table_ptr, query, num_queries, eps, QUERIES, ROPE)
    # Rounded where the plain path rounds it.
    q = q.to(out_ptr.dtype.element_ty)

    best = tl.full((QUERIES,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((QUERIES,), tl.float32)
    total = tl.zeros((QUERIES, 64), tl.float32)

    # Text first: there is always some, and every query sees it, so that no softmax is empty.
    text_row = row
    if HAS_INDEX:
        text_row = tl.load(index_ptr + row)
    # Lengths come as int64: in that width the masks below would cost half as much again.
    num_tokens = tl.load(num_tokens_ptr + row).to(tl.int32)
    text_at = text_row.to(tl.int64) * text_row_stride
    for start in range(0, num_tokens, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < num_tokens
        place = text_at + key[:, None] * text_token_stride + column[None, :]
        k = tl.load(text_key_ptr + place, mask=inside[:, None], other=0.0)
        v = tl.load(text_value_ptr + place, mask=inside[:, None], other=0.0)
        best, weight_sum, total = _add_keys(
            q, k, v, inside[None, :], score_scale, best, weight_sum, total
        )

    if SEES_FRAMES:
        num_frames = tl.load(num_frames_ptr + row).to(tl.int32)
        low = tl.maximum(first - band, 0) // KEYS * KEYS
        high = tl.minimum(first + QUERIES + band, num_frames)
        if CAUSAL:
            high = tl.minimum(first + QUERIES, num_frames)
        for start in range(low, high, KEYS):
            key = start + tl.arange(0, KEYS)
            inside = key < num_frames
            place = own_ptr + key[:, None] * token_stride + column[None, :]
            k = tl.load(place + width, mask=inside[:, None], other=0.0)
            v = tl.load(place + 2 * width, mask=inside[:, None], other=0.0)
            # Unsigned, one comparison sees both ends of the band: what is before it wraps round.
            offset = tl.where(inside, key + band, _NOWHERE)[None, :] - query[:, None]
            reach = band if CAUSAL else 2 * band
            visible = offset.to(tl.uint32, bitcast=True) <= reach.to(tl.uint32, bitcast=True)
            best, weight_sum, total = _add_keys(
                q, k, v, visible, score_scale, best, weight_sum, total
            )

    out = total / weight_sum[:, None]
    tl.store(
        out_ptr + (row.to(tl.int64) * num_queries + query)[:, None] * width + column[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=(query < num_queries)[:, None],
    )


def fused_attention(
    qkv_BLF: Tensor,
    q_norm: Tensor,
    table: Tensor | None,
    text_key_TNHE: Tensor,
    text_value_TNHE: Tensor,
    index_B: Tensor | None,
    num_frames_B: Tensor | None,
    num_tokens_B: Tensor,
    num_heads: int,
    *,
    band: int = NO_BAND,
    causal: bool = False,
) -> Tensor:
    """What the queries of qkv (B, L, >= 3 H E) see: (B, L, H E).

    Keys of qkv are normed and rotated already, its queries are not: `q_norm` (E,) and `table`
    (2, L, E/2), None for no rotation, do that here. Row b sees the first `num_tokens[b]` tokens (at
    least one) of text row `index[b]` (b without an index), and, unless `num_frames` is None, its
    own first `num_frames[b]` frames within `band` of the query.
    """
    num_rows, num_queries, _ = qkv_BLF.shape
    out = qkv_BLF.new_empty(num_rows, num_queries, num_heads * HEAD_DIM)
    _attention_kernel[(triton.cdiv(num_queries, QUERIES), num_heads, num_rows)](
        qkv_BLF,
        q_norm,
        q_norm if table is None else table,
        text_key_TNHE,
        text_value_TNHE,
        num_tokens_B if index_B is None else index_B,
        num_tokens_B if num_frames_B is None else num_frames_B,
        num_tokens_B,
        out,
        num_queries,
        qkv_BLF.stride(1),
        text_key_TNHE.stride(0),
        text_key_TNHE.stride(1),
        band,
        _LOG2_E / HEAD_DIM**0.5,
        eps=EPS,
        HEADS=num_heads,
        QUERIES=QUERIES,
        KEYS=KEYS,
        SEES_FRAMES=num_frames_B is not None,
        HAS_INDEX=index_B is not None,
        ROPE=table is not None,
        CAUSAL=causal,
        num_warps=WARPS,
        num_stages=STAGES,
        maxnreg=REGISTERS,
    )
    return out
