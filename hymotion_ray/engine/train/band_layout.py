"""Lets a network train with band attention, where a device has it; in place.

Knows how the network lays out a batch. What band attention is: `model/train_attention.py`.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.model.rope import rope_table
from hymotion_ray.model.streams import MotionLayout
from hymotion_ray.model.train_attention import band_mask, has_band_attention


def choose_attention(network: nn.Module, config: ParallelConfig, device: torch.device) -> bool:
    """Replace the layout of batches where `config` wants band attention; returns whether it does.

    Raises `ConfigError` for band on a device that cannot train with it.
    """
    available = has_band_attention(device)
    if config.attention == "band" and not available:
        raise ConfigError(
            f"attention is 'band' on a {device.type} device; allowed: CUDA of compute capability"
            " 8.0 or later, with Triton; take auto or dense"
        )
    if config.attention == "dense" or not available:
        return False
    for part in network.modules():
        if isinstance(part, MotionMMDiT):
            use_band_layout(part)
    return True


def use_band_layout(network: MotionMMDiT) -> None:
    """Let `network` lay out its batches for band attention from here on."""
    network.motion_layout = partial(_band_layout, network)  # type: ignore[method-assign]


def _band_layout(
    network: MotionMMDiT,
    x_length_B: Tensor,
    context_length_B: Tensor,
    num_frames: int,
    num_tokens: int,
) -> MotionLayout:
    """As `MotionMMDiT.motion_layout`."""
    config = network.config
    if num_frames > network.train_frames:  # its own refuses them
        return MotionMMDiT.motion_layout(
            network, x_length_B, context_length_B, num_frames, num_tokens
        )
    start = int(config.insert_start_token)
    mask = band_mask(x_length_B + start, context_length_B, config.mask_mode, config.band_frames)
    positions_L = torch.arange(num_frames + start, device=x_length_B.device)
    # Blocks take either kind of mask; the layout is typed for the sampler's.
    return MotionLayout(cast("Tensor", mask), rope_table(positions_L, config.head_dim))
