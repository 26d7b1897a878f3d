"""Attention for training on a GPU: only the band of motion and the text beside it are computed.

The same visibility as `attention.motion_mask`, as a rule of index instead of a matrix, for
`flex_attention`: it computes blocks of the score matrix that anybody sees and keeps none of it for
the backward pass. Which blocks those are depends on the shape alone and is found once a shape; the
rows' own lengths are looked up by the rule. Knows no weights and no blocks of the network.

Shapes: B rows, L motion tokens, N text tokens, S = L + N keys, H heads, E head width, D = H E.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from hymotion_ray.config.network import MaskMode

BLOCK = 128
"""Side of a block of the score matrix that is computed or left out as a whole."""


def has_band_attention(device: torch.device) -> bool:
    """Whether flex_attention trains on `device`: CUDA, and torch 2.6 or later."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return device.type == "cuda" and version >= (2, 6)


def band_mask(
    motion_length_B: Tensor,
    num_motion_tokens: int,
    text_length_B: Tensor,
    num_text_tokens: int,
    mode: MaskMode,
    band: int,
) -> BlockMask:
    """Who sees whom, as `attention.motion_mask` says it: L queries, L + N keys, any head."""
    device = motion_length_B.device
    base = _blocks(num_motion_tokens, num_text_tokens, mode, band, device)

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_near = _is_near(query, key, mode, band)
        to_motion = (is_near & (key < motion_length_B[row])) | (query == key)
        to_text = key - num_motion_tokens < text_length_B[row]
        return torch.where(key < num_motion_tokens, to_motion, to_text)

    mask = copy.copy(base)
    mask.mask_mod = sees
    return mask


def band_attention(q_BLHE: Tensor, k_BSHE: Tensor, v_BSHE: Tensor, mask: BlockMask) -> Tensor:
    """Softmax attention with scale 1/sqrt(E) under a `band_mask`; returns (B, L, D)."""
    attend = flex_attention if q_BLHE.device.type == "cpu" else _compiled()
    out_BHLE = attend(
        q_BLHE.transpose(1, 2), k_BSHE.transpose(1, 2), v_BSHE.transpose(1, 2), block_mask=mask
    )
    return out_BHLE.transpose(1, 2).flatten(2)


@functools.cache
def _compiled() -> Any:
    # Interpreted, flex_attention writes out the whole score matrix.
    return torch.compile(flex_attention)


@functools.lru_cache(maxsize=256)
def _blocks(
    num_motion: int, num_text: int, mode: MaskMode, band: int, device: torch.device
) -> BlockMask:
    """Blocks that rows of any length may see; each is looked at number by number."""
    query_Q1 = torch.arange(num_motion)[:, None]
    key_S = torch.arange(num_motion + num_text)
    sees_QS = _is_near(query_Q1, key_S, mode, band) | (key_S >= num_motion)
    padding = (0, -len(key_S) % BLOCK, 0, -num_motion % BLOCK)
    tiles = F.pad(sees_QS, padding).unflatten(1, (-1, BLOCK))
    any_qk = tiles.unflatten(0, (-1, BLOCK)).any(3).any(1)
    counts_q = any_qk.sum(-1, dtype=torch.int32)
    order_qk = any_qk.to(torch.int8).argsort(dim=-1, descending=True, stable=True).int()
    return BlockMask.from_kv_blocks(
        counts_q[None, None].to(device),
        order_qk[None, None].to(device),
        BLOCK_SIZE=BLOCK,
        seq_lengths=(num_motion, num_motion + num_text),
    )


def _is_near(query: Tensor, key: Tensor, mode: MaskMode, band: int) -> Tensor:
    """Motion that motion may see, by place alone."""
    if mode == "narrowband":
        return (query - key).abs() <= band
    if mode == "causal":
        return key <= query
    return torch.ones_like(key == query)
