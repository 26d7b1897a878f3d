"""How a latent is sampled, exactly or by an approximate mode. Knows no tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hymotion_ray.config.fields import require

Method = Literal["euler", "midpoint", "rk4"]
ExactPrecision = Literal["auto", "float32", "bfloat16", "float16"]
"""Number format of the network; auto: the best the device has."""
Precision = Literal[ExactPrecision, "float8"]
"""The same, and bfloat16 with the products of the motion half in eight bits, which is approximate.
"""
FLOAT8_WORDS = "products in float8"
"""What outputs carry that were sampled in float8."""
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
    guidance_interval: tuple[float, float] = (0.0, 1.0)
    """First and last time t of guidance; outside of it no null branch is computed. Approximate."""
    null_every: int = 1
    """The null branch is computed anew in every so many-th step that has guidance; between them its
    distance from the text branch stays what it was. Approximate from 2 on."""

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
        lo_hi = self.guidance_interval
        require(
            isinstance(lo_hi, tuple) and len(lo_hi) == 2 and 0 <= lo_hi[0] < lo_hi[1] <= 1,
            "guidance_interval",
            lo_hi,
            "two times with 0 <= first < last <= 1, such as (0.1, 0.8)",
        )
        require(1 <= self.null_every <= 1000, "null_every", self.null_every, "1 to 1000")

    @property
    def shortcuts(self) -> tuple[str, ...]:
        """What is left out of the guided flow, in words that outputs carry; () when it is exact."""
        words = []
        if self.guidance_interval != (0.0, 1.0):
            words.append("guidance for t from {} to {}".format(*self.guidance_interval))
        if self.null_every > 1:
            words.append(f"null branch anew every {self.null_every} steps")
        return tuple(words)
