"""What a run is: frozen dataclasses, presets as functions, typed overrides. No torch, no ray."""

from hymotion_ray.config.grid import Grid, GridCell
from hymotion_ray.config.model import ModelConfig, TextConfig
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.sampling import SamplingConfig

__all__ = ["Grid", "GridCell", "ModelConfig", "NetworkConfig", "SamplingConfig", "TextConfig"]
