"""The straight path from noise (t = 0) to data (t = 1). Knows no network and no batches."""

from __future__ import annotations

import torch
from torch import Tensor

INPUT_DIM = 201
"""Numbers a motion frame."""


def noise(seed: int, train_frames: int, device: torch.device | str = "cpu") -> Tensor:
    """Noise (train_frames, 201) fp32, drawn on `device` and returned on CPU.

    Drawn on the CPU it depends on `seed` (int64) alone. Drawn on a GPU, as the released Lite model
    does, the same seed is other noise, and may differ from one GPU model to the next. A shorter
    clip takes the first frames of it, so the same seed starts every length alike.
    """
    generator = torch.Generator(device).manual_seed(seed)
    shape = (1, train_frames, INPUT_DIM)
    return torch.randn(shape, generator=generator, device=device).squeeze(0).cpu()


def interpolate(noise_BLF: Tensor, data_BLF: Tensor, t_B: Tensor) -> Tensor:
    """The point `(1 - t) noise + t data` (B, L, 201) of the path at t (B,) in [0, 1]."""
    t_B11 = t_B[:, None, None]
    return (1 - t_B11) * noise_BLF + t_B11 * data_BLF


def target(noise_BLF: Tensor, data_BLF: Tensor) -> Tensor:
    """The velocity `data - noise` (B, L, 201) that the network learns; constant along the path.

    Source: Liu et al., Flow straight and fast (2022), equation 1.
    """
    return data_BLF - noise_BLF
