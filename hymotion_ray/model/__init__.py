"""The network: text tokens and noisy motion to velocity. Imports torch, config and errors only."""

from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.model.streams import MotionLayout, TextStream

__all__ = ["MotionLayout", "MotionMMDiT", "TextStream"]
