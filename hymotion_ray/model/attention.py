"""Attention and who may attend to whom. Knows nothing of blocks or weights.

Text never sees motion, padded keys are never seen, and every token sees at least itself, so that no
row of the softmax is empty: a padded token's output is finite and nobody reads it.

Shapes: B rows, L motion tokens (frames, and the start token if there is one), N text tokens,
S keys, H heads, E head width, D = H E.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hymotion_ray.config.network import MaskMode

CPU_MULTIPLE = 16
"""Torch's CPU attention gives each thread a scratch buffer whose alignment depends on the thread
when there are few queries (under 32) and their number is odd, and the matrix products' last bits
depend on the alignment. In inference queries are padded to this multiple, so that a row's bits do
not depend on which thread takes it (seen in torch 2.13 with MKL 2024.2)."""


def attention(q_BLHE: Tensor, k_BSHE: Tensor, v_BSHE: Tensor, mask_B1LS: Tensor) -> Tensor:
    """Softmax attention with scale 1/sqrt(E) and an additive mask; returns (B, L, D)."""
    num_queries = q_BLHE.shape[1]
    missing = -num_queries % CPU_MULTIPLE if num_queries < 32 else 0
    if missing and q_BLHE.device.type == "cpu" and not torch.is_grad_enabled():
        q_BLHE = F.pad(q_BLHE, (0, 0, 0, 0, 0, missing))
        mask_B1LS = F.pad(mask_B1LS, (0, 0, 0, missing))
    out_BHLE = F.scaled_dot_product_attention(
        q_BLHE.transpose(1, 2),
        k_BSHE.transpose(1, 2),
        v_BSHE.transpose(1, 2),
        attn_mask=mask_B1LS,
    )
    return out_BHLE.transpose(1, 2)[:, :num_queries].flatten(2)


def length_mask(length_B: Tensor, num_tokens: int) -> Tensor:
    """(B, num_tokens) bool: which tokens are valid, given how many are."""
    return torch.arange(num_tokens, device=length_B.device) < length_B.unsqueeze(1)


def text_mask(text_length_B: Tensor, num_tokens: int, dtype: torch.dtype) -> Tensor:
    """(B, 1, N, N) additive: text sees valid text, and each token itself."""
    visible_BN = length_mask(text_length_B, num_tokens)
    itself_NN = torch.eye(num_tokens, dtype=torch.bool, device=text_length_B.device)
    return _additive(visible_BN.unsqueeze(1) | itself_NN, dtype)


def motion_mask(
    motion_length_B: Tensor,
    num_motion_tokens: int,
    text_length_B: Tensor,
    num_text_tokens: int,
    mode: MaskMode,
    band: int,
    dtype: torch.dtype,
) -> Tensor:
    """(B, 1, L, L + N) additive: motion sees valid motion by `mode`, valid text, and itself.

    `mode`: narrowband (|i - j| <= band), causal (j <= i) or none (all), over motion tokens.
    """
    index_L = torch.arange(num_motion_tokens, device=motion_length_B.device)
    ahead_LL = index_L - index_L.unsqueeze(1)
    if mode == "narrowband":
        near_LL = ahead_LL.abs() <= band
    elif mode == "causal":
        near_LL = ahead_LL <= 0
    else:
        near_LL = torch.ones_like(ahead_LL, dtype=torch.bool)
    valid_BL = length_mask(motion_length_B, num_motion_tokens)
    to_motion_BLL = (near_LL & valid_BL.unsqueeze(1)) | (ahead_LL == 0)
    valid_BN = length_mask(text_length_B, num_text_tokens)
    to_text_BLN = valid_BN.unsqueeze(1).expand(-1, num_motion_tokens, -1)
    return _additive(torch.cat((to_motion_BLL, to_text_BLN), dim=2), dtype)


def _additive(visible_BQS: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype, device=visible_BQS.device)
    return torch.where(visible_BQS, zero, float("-inf")).unsqueeze(1)
