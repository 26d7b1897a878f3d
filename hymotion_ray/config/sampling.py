"""How a latent is sampled. Knows no tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hymotion_ray.config.fields import require

Method = Literal["euler", "midpoint", "rk4"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]
NoiseSource = Literal["cpu", "gpu"]
"""Whose generator draws the noise: the CPU's is the same everywhere, each GPU model has its own."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Settings of one flow integration from noise (t = 0) to data (t = 1)."""

    num_steps: int = 50
    """Solver steps over t in [0, 1]."""
    guidance_scale: float = 5.0
    """Classifier-free guidance; at most 1 means no null branch."""
    method: Method = "euler"
    """Fixed-step solver; rk4 is the 3/8 rule."""

    def __post_init__(self) -> None:
        require(1 <= self.num_steps <= 1000, "num_steps", self.num_steps, "1 to 1000")
        require(
            math.isfinite(self.guidance_scale) and 0 <= self.guidance_scale <= 100,
            "guidance_scale",
            self.guidance_scale,
            "a finite number from 0 to 100",
        )
        require(
            self.method in ("euler", "midpoint", "rk4"),
            "method",
            self.method,
            "euler, midpoint or rk4",
        )
