"""Attention for training on a GPU: only the band of motion and the text beside it are computed.

The same visibility as `attention.motion_mask`, said by numbers instead of a matrix, and an operator
of torch with a gradient around the kernels of `fused/band_training.py`, which torch.compile and
CUDA graphs take as they take its own. Knows no weights and no blocks of the network.

Shapes: B rows, L motion tokens, N text tokens, H heads, E head width, D = H E.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hymotion_ray.config.network import MaskMode

_FAR = 2**20
_MIN_CAPABILITY = (8, 0)


class BandMask(NamedTuple):
    """Who sees whom: what `attention.motion_mask` says, by numbers."""

    num_motion: Tensor
    """(B,) int64 motion tokens that are no padding."""
    num_text: Tensor
    """(B,) int64 text tokens that are no padding."""
    behind: int
    """How far before itself a motion token sees others."""
    ahead: int
    """How far behind itself."""


def has_band_attention(device: torch.device) -> bool:
    """Whether the kernels train on `device`: CUDA of capability 8.0 or later, with Triton."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= _MIN_CAPABILITY


def band_mask(
    motion_length_B: Tensor, text_length_B: Tensor, mode: MaskMode, band: int
) -> BandMask:
    """Who sees whom, as `attention.motion_mask` says it."""
    behind = band if mode == "narrowband" else _FAR
    ahead = {"narrowband": band, "causal": 0, "none": _FAR}[mode]
    return BandMask(motion_length_B, text_length_B, behind, ahead)


def band_attention(
    qkv_BL3HE: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    rope: Tensor,
    text_k_BNHE: Tensor,
    text_v_BNHE: Tensor,
    mask: BandMask,
) -> Tensor:
    """What motion sees of motion and text; returns (B, L, D).

    Queries and keys of qkv are normed with the weights q_norm and k_norm (E,) and rotated by rope
    (2, L, 1, E/2); then softmax attention with scale 1/sqrt(E).
    """
    inputs = qkv_BL3HE, q_norm, k_norm, rope, text_k_BNHE, text_v_BNHE
    return _attend(*inputs, *mask)[0].flatten(2)


@torch.library.custom_op("hymotion_ray::band_attention", mutates_args=())
def _attend(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    rope: Tensor,
    text_k: Tensor,
    text_v: Tensor,
    num_motion: Tensor,
    num_text: Tensor,
    behind: int,
    ahead: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is seen (B, L, H, E), its log-sum-exp (B, H, L), and queries and keys."""
    from hymotion_ray.model.fused import band_training, rotate_training

    qkv, text_k, text_v = (_in_pieces(part) for part in (qkv, text_k, text_v))
    q, k = rotate_training.rotate(qkv, q_norm, k_norm, rope)
    out, lse = band_training.forward(
        q, k, qkv[:, :, 2], text_k, text_v, num_motion, num_text, behind, ahead
    )
    return out, lse, q, k


@torch.library.custom_op("hymotion_ray::band_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    rope: Tensor,
    text_k: Tensor,
    text_v: Tensor,
    num_motion: Tensor,
    num_text: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    behind: int,
    ahead: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of qkv, q_norm, k_norm, text_k and text_v."""
    from hymotion_ray.model.fused import band_training, rotate_training

    qkv, text_k, text_v = (_in_pieces(part) for part in (qkv, text_k, text_v))
    to_qkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    to_q, to_k, to_text_k, to_text_v = band_training.backward(
        grad, q, k, qkv[:, :, 2], text_k, text_v, num_motion, num_text,
        out, lse, behind, ahead, to_qkv[:, :, 2],
    )  # fmt: skip
    norms = rotate_training.rotate_back(qkv, q_norm, k_norm, rope, to_q, to_k, to_qkv)
    to_q_norm, to_k_norm = (to.to(q_norm.dtype) for to in norms)
    return to_qkv, to_q_norm, to_k_norm, to_text_k, to_text_v


def _in_pieces(part: Tensor) -> Tensor:
    """The same values, each token's side by side in memory."""
    size, is_apart = 1, True
    for width, stride in zip(reversed(part.shape[2:]), reversed(part.stride()[2:]), strict=True):
        is_apart &= stride == size
        size *= width
    return part if is_apart else part.contiguous()


@_attend.register_fake
def _(qkv: Tensor, *others: Any) -> tuple[Tensor, ...]:
    rows, length, _, heads, width = qkv.shape
    out, q, k = (qkv.new_empty(rows, length, heads, width) for _ in range(3))
    return out, qkv.new_empty(rows, heads, length, dtype=torch.float32), q, k


@_backward.register_fake
def _(grad: Tensor, *others: Any) -> tuple[Tensor, ...]:
    qkv, q_norm, k_norm, _, text_k, text_v = others[:6]
    return tuple(part.new_empty(part.shape) for part in (qkv, q_norm, k_norm, text_k, text_v))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:8], *output)
    ctx.reach = inputs[8:]


def _gradients(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    to_qkv, to_q_norm, to_k_norm, to_text_k, to_text_v = _backward(
        grad, *ctx.saved_tensors, *ctx.reach
    )
    return to_qkv, to_q_norm, to_k_norm, None, to_text_k, to_text_v, None, None, None, None


_attend.register_autograd(_gradients, setup_context=_keep)
