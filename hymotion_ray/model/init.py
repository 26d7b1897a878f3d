"""Weights to start training from. Knows no data and no optimiser.

Source: adaLN-Zero of Peebles & Xie, Scalable diffusion models with transformers (2022), section
3.2: every block starts as the identity, and the first prediction is zero. The text refiner's gates
start open, as the built-in model was trained.
"""

from __future__ import annotations

import torch
from torch import nn

from hymotion_ray.model.layers import Modulation
from hymotion_ray.model.mmdit import MotionMMDiT


def initialise(network: MotionMMDiT, seed: int) -> None:
    """Set all weights of `network` (fp32, on CPU) from `seed` alone.

    Linear layers Xavier uniform with zero bias, norms one, start token normal with deviation 0.02,
    the modulations of the blocks and the last layer zero.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    refiner = set(network.text_refiner.modules())
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            module.reset_parameters()
    for module in network.modules():
        if isinstance(module, Modulation) and module not in refiner:
            nn.init.zeros_(module.linear.weight)
    nn.init.zeros_(network.final_layer.linear.weight)
    if network.config.insert_start_token:
        nn.init.normal_(network.start_token, std=0.02, generator=generator)
