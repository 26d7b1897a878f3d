"""Kernels: attention of frames to the frames near them and to their own text, with its gradients.

Arithmetic of `attention.attention` under `attention.motion_mask`, for queries and keys that are
normed and rotated already: scores and sums in fp32, blocks of keys outside of the band are never
read. The forward pass keeps each query's log-sum-exp, from which the backward pass computes the
weights again; no sum is shared by two programs, so that the bits are the same at every run.
Source: Dao, FlashAttention-2 (2023), algorithms 1 and 2.

Shapes: B rows, L frames, N text tokens, H heads, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E = 1.4426950408889634


class Tile(NamedTuple):
    """What a program computes at once, and with what."""

    queries: int
    keys: int
    warps: int
    stages: int


FORWARD, TO_QUERIES, TO_KEYS = Tile(64, 32, 4, 3), Tile(64, 32, 4, 3), Tile(64, 64, 4, 3)
"""Tiles of the three kernels: the fastest of a dozen each, measured on an H200."""


@triton.jit
def _near(query, key, num_frames, behind, ahead):  # type: ignore[no-untyped-def]
    """Which frames see which: those near that are no padding, and each frame itself."""
    offset = key - query
    return ((offset >= -behind) & (offset <= ahead) & (key < num_frames)) | (offset == 0)


@triton.jit
def _high(first, QUERIES, num_frames, num_queries, ahead):  # type: ignore[no-untyped-def]
    """Where the keys end that some of these queries see."""
    seen = tl.minimum(first + QUERIES + ahead, tl.maximum(num_frames, first + QUERIES))
    return tl.minimum(seen, num_queries)


@triton.jit
def _tile(ptr, place, token_stride, num_tokens, E, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tokens at `place`, one head of them; zeros past their end."""
    column = tl.arange(0, WIDTH)
    return tl.load(
        ptr + place[:, None] * token_stride + column[None, :],
        mask=(place < num_tokens)[:, None] & (column < E)[None, :],
        other=0.0,
    )


@triton.jit
def _add(q, k, v, visible, score_scale, best, weight_sum, total, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """One block of keys into the running softmax, whose base is 2."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * score_scale
    scores = tl.where(visible, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_best[:, None])
    shrink = tl.exp2(best - new_best)
    weight_sum = weight_sum * shrink + tl.sum(weights, axis=1)
    total = tl.dot(weights.to(v.dtype), v, total * shrink[:, None], input_precision=PRECISION)
    return new_best, weight_sum, total


@triton.jit(do_not_specialize=["behind", "ahead"])
def _forward_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, text_k_ptr, text_v_ptr, frames_ptr, tokens_ptr, out_ptr, lse_ptr,
    q_row, q_token, k_row, k_token, v_row, v_token,
    text_k_row, text_k_token, text_v_row, text_v_token,
    num_queries, behind, ahead, score_scale,
    HEADS: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first, head = tl.program_id(0) * QUERIES, tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    query = first + tl.arange(0, QUERIES)
    q = _tile(q_ptr + row * q_row + head * E, query, q_token, num_queries, E, WIDTH)
    # Finite: a block in which a query sees nothing leaves its sums as they are.
    best = tl.full((QUERIES,), -1e30, tl.float32)
    weight_sum = tl.zeros((QUERIES,), tl.float32)
    total = tl.zeros((QUERIES, WIDTH), tl.float32)

    num_tokens = tl.load(tokens_ptr + row).to(tl.int32)
    own_k, own_v = (
        text_k_ptr + row * text_k_row + head * E,
        text_v_ptr + row * text_v_row + head * E,
    )
    for start in range(0, num_tokens, KEYS):
        key = start + tl.arange(0, KEYS)
        k = _tile(own_k, key, text_k_token, num_tokens, E, WIDTH)
        v = _tile(own_v, key, text_v_token, num_tokens, E, WIDTH)
        visible = (key < num_tokens)[None, :]
        best, weight_sum, total = _add(
            q, k, v, visible, score_scale, best, weight_sum, total, PRECISION
        )

    num_frames = tl.load(frames_ptr + row).to(tl.int32)
    own_k, own_v = k_ptr + row * k_row + head * E, v_ptr + row * v_row + head * E
    high = _high(first, QUERIES, num_frames, num_queries, ahead)
    for start in range(tl.maximum(first - behind, 0) // KEYS * KEYS, high, KEYS):
        key = start + tl.arange(0, KEYS)
        k = _tile(own_k, key, k_token, num_queries, E, WIDTH)
        v = _tile(own_v, key, v_token, num_queries, E, WIDTH)
        visible = _near(query[:, None], key[None, :], num_frames, behind, ahead)
        best, weight_sum, total = _add(
            q, k, v, visible, score_scale, best, weight_sum, total, PRECISION
        )

    column = tl.arange(0, WIDTH)
    place = ((row * num_queries + query[:, None]) * HEADS + head) * E + column[None, :]
    inside = query < num_queries
    tl.store(
        out_ptr + place,
        (total / weight_sum[:, None]).to(out_ptr.dtype.element_ty),
        mask=inside[:, None] & (column < E)[None, :],
    )
    lse = best + tl.log2(weight_sum)
    tl.store(lse_ptr + (row * HEADS + head) * num_queries + query, lse, mask=inside)


@triton.jit
def _score_gradient(  # type: ignore[no-untyped-def]
    q, k, v, grad, lse, delta, visible, score_scale, PRECISION: tl.constexpr
):
    """Weights (queries, keys) of a block, and the gradient of its scores."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * score_scale
    weights = tl.where(visible, tl.exp2(scores - lse[:, None]), 0.0)
    to_weights = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    return weights, weights * (to_weights - delta[:, None])


@triton.jit(do_not_specialize=["behind", "ahead"])
def _to_queries_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, text_k_ptr, text_v_ptr, frames_ptr, tokens_ptr, out_ptr, lse_ptr,
    grad_ptr, delta_ptr, to_q_ptr,
    q_row, q_token, k_row, k_token, v_row, v_token,
    text_k_row, text_k_token, text_v_row, text_v_token,
    num_queries, behind, ahead, score_scale, scale,
    HEADS: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of the queries; and `delta`, the sum of output times its gradient."""
    first, head = tl.program_id(0) * QUERIES, tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    query = first + tl.arange(0, QUERIES)
    inside = query < num_queries
    q = _tile(q_ptr + row * q_row + head * E, query, q_token, num_queries, E, WIDTH)
    dense = (row * num_queries * HEADS + head) * E
    out = _tile(out_ptr + dense, query, HEADS * E, num_queries, E, WIDTH)
    grad = _tile(grad_ptr + dense, query, HEADS * E, num_queries, E, WIDTH)
    delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), axis=1)
    at = (row * HEADS + head) * num_queries + query
    tl.store(delta_ptr + at, delta, mask=inside)
    lse = tl.load(lse_ptr + at, mask=inside, other=0.0)
    to_q = tl.zeros((QUERIES, WIDTH), tl.float32)

    num_tokens = tl.load(tokens_ptr + row).to(tl.int32)
    own_k, own_v = (
        text_k_ptr + row * text_k_row + head * E,
        text_v_ptr + row * text_v_row + head * E,
    )
    for start in range(0, num_tokens, KEYS):
        key = start + tl.arange(0, KEYS)
        k = _tile(own_k, key, text_k_token, num_tokens, E, WIDTH)
        v = _tile(own_v, key, text_v_token, num_tokens, E, WIDTH)
        visible = (key < num_tokens)[None, :]
        _, to_scores = _score_gradient(q, k, v, grad, lse, delta, visible, score_scale, PRECISION)
        to_q = tl.dot(to_scores.to(k.dtype), k, to_q, input_precision=PRECISION)

    num_frames = tl.load(frames_ptr + row).to(tl.int32)
    own_k, own_v = k_ptr + row * k_row + head * E, v_ptr + row * v_row + head * E
    high = _high(first, QUERIES, num_frames, num_queries, ahead)
    for start in range(tl.maximum(first - behind, 0) // KEYS * KEYS, high, KEYS):
        key = start + tl.arange(0, KEYS)
        k = _tile(own_k, key, k_token, num_queries, E, WIDTH)
        v = _tile(own_v, key, v_token, num_queries, E, WIDTH)
        visible = _near(query[:, None], key[None, :], num_frames, behind, ahead)
        _, to_scores = _score_gradient(q, k, v, grad, lse, delta, visible, score_scale, PRECISION)
        to_q = tl.dot(to_scores.to(k.dtype), k, to_q, input_precision=PRECISION)

    column = tl.arange(0, WIDTH)
    tl.store(
        to_q_ptr + dense + query[:, None] * HEADS * E + column[None, :],
        (to_q * scale).to(to_q_ptr.dtype.element_ty),
        mask=inside[:, None] & (column < E)[None, :],
    )


@triton.jit(do_not_specialize=["behind", "ahead"])
def _to_keys_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, lengths_ptr, lse_ptr, grad_ptr, delta_ptr, to_k_ptr, to_v_ptr,
    q_row, q_token, k_row, k_token, v_row, v_token, to_k_row, to_k_token, to_v_row, to_v_token,
    num_queries, num_keys, behind, ahead, score_scale, scale,
    IS_TEXT: tl.constexpr,
    HEADS: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values: of text, which every query sees, or of frames."""
    first, head = tl.program_id(0) * KEYS, tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    key = first + tl.arange(0, KEYS)
    length = tl.load(lengths_ptr + row).to(tl.int32)
    k = _tile(k_ptr + row * k_row + head * E, key, k_token, num_keys, E, WIDTH)
    v = _tile(v_ptr + row * v_row + head * E, key, v_token, num_keys, E, WIDTH)
    to_k = tl.zeros((KEYS, WIDTH), tl.float32)
    to_v = tl.zeros((KEYS, WIDTH), tl.float32)
    low, high = 0, num_queries
    if not IS_TEXT:
        low = tl.maximum(first - ahead, 0) // QUERIES * QUERIES
        high = tl.minimum(first + KEYS + behind, num_queries)
    dense = (row * num_queries * HEADS + head) * E
    for start in range(low, high, QUERIES):
        query = start + tl.arange(0, QUERIES)
        inside = query < num_queries
        q = _tile(q_ptr + row * q_row + head * E, query, q_token, num_queries, E, WIDTH)
        grad = _tile(grad_ptr + dense, query, HEADS * E, num_queries, E, WIDTH)
        at = (row * HEADS + head) * num_queries + query
        lse = tl.load(lse_ptr + at, mask=inside, other=0.0)
        delta = tl.load(delta_ptr + at, mask=inside, other=0.0)
        if IS_TEXT:
            visible = (key < length)[None, :]
        else:
            visible = _near(query[:, None], key[None, :], length, behind, ahead)
        weights, to_scores = _score_gradient(
            q, k, v, grad, lse, delta, visible & inside[:, None], score_scale, PRECISION
        )
        to_v = tl.dot(tl.trans(weights.to(v.dtype)), grad, to_v, input_precision=PRECISION)
        to_k = tl.dot(tl.trans(to_scores.to(q.dtype)), q, to_k, input_precision=PRECISION)

    column = tl.arange(0, WIDTH)
    mask = (key < num_keys)[:, None] & (column < E)[None, :]
    to_k_ptr += row * to_k_row + head * E + key[:, None] * to_k_token + column[None, :]
    to_v_ptr += row * to_v_row + head * E + key[:, None] * to_v_token + column[None, :]
    tl.store(to_k_ptr, (to_k * scale).to(to_k_ptr.dtype.element_ty), mask=mask)
    tl.store(to_v_ptr, to_v.to(to_v_ptr.dtype.element_ty), mask=mask)


def forward(
    q: Tensor, k: Tensor, v: Tensor, text_k: Tensor, text_v: Tensor,
    frames_B: Tensor, tokens_B: Tensor, behind: int, ahead: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What queries q (B, L, H, E) see, (B, L, H, E), and its log-sum-exp (B, H, L) fp32, base 2.

    Query i of row b sees frames i - behind to i + ahead of the first `frames[b]` of k and v, as q,
    itself, and the first `tokens[b]` of text_k and text_v (B, N, H, E). fp32, bf16 or fp16; one
    token's heads lie side by side.
    """
    num_rows, num_queries, num_heads, width = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = q.new_empty(num_rows, num_heads, num_queries, dtype=torch.float32)
    _forward_kernel[(triton.cdiv(num_queries, FORWARD.queries), num_heads, num_rows)](
        q, k, v, text_k, text_v, frames_B, tokens_B, out, lse,
        *_strides(q, k, v, text_k, text_v),
        num_queries, behind, ahead, _LOG2_E / width**0.5,
        **_constants(q, FORWARD),
    )  # fmt: skip
    return out, lse


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, text_k: Tensor, text_v: Tensor,
    frames_B: Tensor, tokens_B: Tensor, out: Tensor, lse: Tensor, behind: int, ahead: int,
    to_v: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, text_k and text_v, contiguous, from that of `forward`'s output.

    That of v is written to `to_v`, laid out as `forward` wants its inputs.
    """
    num_rows, num_queries, num_heads, width = q.shape
    grad = grad.contiguous()
    to_q, to_k, to_text_k, to_text_v = (
        torch.empty_like(part, memory_format=torch.contiguous_format)
        for part in (q, k, text_k, text_v)
    )
    delta = torch.empty_like(lse)
    scales = _LOG2_E / width**0.5, width**-0.5
    _to_queries_kernel[(triton.cdiv(num_queries, TO_QUERIES.queries), num_heads, num_rows)](
        q, k, v, text_k, text_v, frames_B, tokens_B, out, lse, grad, delta, to_q,
        *_strides(q, k, v, text_k, text_v),
        num_queries, behind, ahead, *scales,
        **_constants(q, TO_QUERIES),
    )  # fmt: skip
    for keys, values, lengths, to_keys, to_values, is_text in (
        (k, v, frames_B, to_k, to_v, False),
        (text_k, text_v, tokens_B, to_text_k, to_text_v, True),
    ):
        num_keys = keys.shape[1]
        _to_keys_kernel[(triton.cdiv(num_keys, TO_KEYS.keys), num_heads, num_rows)](
            q, keys, values, lengths, lse, grad, delta, to_keys, to_values,
            *_strides(q, keys, values, to_keys, to_values),
            num_queries, num_keys, behind, ahead, *scales,
            IS_TEXT=is_text,
            **_constants(q, TO_KEYS),
        )  # fmt: skip
    return to_q, to_k, to_text_k, to_text_v


def _strides(*parts: Tensor) -> Sequence[int]:
    """Of rows and tokens, part by part."""
    return [stride for part in parts for stride in part.stride()[:2]]


def _constants(q: Tensor, tile: Tile) -> dict[str, int | str]:
    width = q.shape[3]
    return {
        "HEADS": q.shape[2],
        "E": width,
        "WIDTH": max(16, triton.next_power_of_2(width)),
        "QUERIES": tile.queries,
        "KEYS": tile.keys,
        # fp32 stays fp32: torch's own products do not round it either unless asked to.
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
