"""The network: text tokens and noisy motion to velocity. Imports torch, config and errors only."""

from hymotion_ray.model.init import initialise
from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.model.precision import choose_precision, device_precision, set_precision
from hymotion_ray.model.streams import MotionLayout, TextStream

__all__ = [
    "MotionLayout",
    "MotionMMDiT",
    "TextStream",
    "choose_precision",
    "device_precision",
    "initialise",
    "set_precision",
]
