"""A loaded model on a device that it does not fit: its blocks' weights wait in host memory.

What a stage asks of `hymotion_ray.api.Model`, for sampling alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hymotion_ray.api import load_model
from hymotion_ray.config.grid import Grid
from hymotion_ray.config.model import ModelConfig
from hymotion_ray.config.sampling import NoiseSource, Precision
from hymotion_ray.flow.sampler import Sampler
from hymotion_ray.model.offload import LayerOffload
from hymotion_ray.model.precision import device_precision, set_precision
from hymotion_ray.motion.motion import Motion


class OffloadedModel:
    """A model whose samplers bring each block's weights to the device when its turn comes."""

    def __init__(self, model: str, device: str, precision: Precision) -> None:
        """Load `model` into host memory, pinned where `device` is a GPU."""
        choice = device_precision(precision, torch.device(device))
        self._loaded = load_model(model, device="cpu", dtype=choice.name)
        set_precision(self._loaded.network, choice)
        self.network = LayerOffload(self._loaded.network, device)
        self.precision: str = choice.name
        self.precision_reason = choice.reason

    @property
    def config(self) -> ModelConfig:
        """What the model is."""
        return self._loaded.config

    def decode(self, latent: Tensor) -> Motion:
        """As `Model.decode` of one latent."""
        return self._loaded.decode(latent)

    def new_sampler(self, grid: Grid | None = None, noise_source: NoiseSource = "cpu") -> Sampler:
        """As `Model.new_sampler`."""
        return self._loaded.sampler_over(self.network, grid, noise_source)
