"""Clips that the motion tests share, made from seeds."""

from __future__ import annotations

import roma
import torch
from torch import Tensor

from hymotion_ray.motion.rotations import matrix_to_rot6d


def make_clip(num_frames: int, seed: int = 0, speed: float = 0.05) -> tuple[Tensor, Tensor]:
    """Rotations (L, 22, 6) and translation (L, 3) that wander smoothly from a random pose."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(num_frames, 22, 3, generator=generator) * speed
    steps[0] = torch.randn(22, 3, generator=generator) * 0.5
    matrix = roma.rotvec_to_rotmat(steps.cumsum(dim=0).double())
    transl = torch.randn(num_frames, 3, generator=generator).cumsum(dim=0) * 0.02
    return matrix_to_rot6d(matrix).float(), transl
