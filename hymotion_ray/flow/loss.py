"""The training loss. Knows a prediction, a target and lengths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def clip_losses(pred: Tensor, target: Tensor, length: Tensor) -> Tensor:
    """SmoothL1 (beta 1), mean over valid frames and dimensions of each clip: (B,) fp32.

    pred and target (B, L, 201), length (B,) int64, each at least 1. Frames at or past a clip's
    length count for nothing, whatever they hold.
    """
    valid_BL1 = (torch.arange(pred.shape[1], device=pred.device) < length[:, None]).unsqueeze(-1)
    # Masked before the error, since the gradient of a masked NaN would still be NaN.
    pred, target = (x.float().masked_fill(~valid_BL1, 0.0) for x in (pred, target))
    error_BLF = F.smooth_l1_loss(pred, target, reduction="none", beta=1.0)
    return error_BLF.sum(dim=(1, 2)) / (length * pred.shape[2])


def flow_matching_loss(pred: Tensor, target: Tensor, length: Tensor) -> Tensor:
    """The mean of `clip_losses` over clips, a scalar in fp32."""
    return clip_losses(pred, target, length).mean()
