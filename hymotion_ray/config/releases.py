"""The shapes of the two published networks, under the names that commands take. Knows no files."""

from __future__ import annotations

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.errors import ConfigError

TRAIN_FRAMES = 360
"""Frames of the published training window: 12 s at 30 frames a second."""

SHAPES = {(1280, 27, 20): "1.0", (1024, 18, 16): "lite"}
"""Width, layers and heads of each."""


def released_network(name: str) -> NetworkConfig:
    """The network called `name`, 1.0 or lite; `ConfigError` for another name."""
    found = [shape for shape, known in SHAPES.items() if known == name]
    if not found:
        raise ConfigError(f"model is {name!r}; allowed: {', '.join(SHAPES.values())}")
    feat_dim, num_layers, num_heads = found[0]
    return NetworkConfig(
        feat_dim=feat_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        ctxt_input_dim=4096,
        vtxt_input_dim=768,
        mask_mode="narrowband",
        apply_rope_to_single_branch=False,
        time_factor=1000.0,
    )
