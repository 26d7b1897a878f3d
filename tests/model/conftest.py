"""Small random networks, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hymotion_ray.config import NetworkConfig
from hymotion_ray.model import MotionMMDiT

TRAIN_FRAMES = 40


def small_config(**changes: Any) -> NetworkConfig:
    values: dict[str, Any] = {
        "feat_dim": 32,
        "num_layers": 6,
        "num_heads": 4,
        "ctxt_input_dim": 20,
        "vtxt_input_dim": 12,
        "mask_mode": "narrowband",
        "narrowband_length": 0.2,
        "apply_rope_to_single_branch": False,
        "time_factor": 1000.0,
    }
    return NetworkConfig(**values | changes)


def randomise(network: nn.Module, seed: int = 0) -> None:
    """Random weights that let every part of the network speak: no zero gates, no unit norms."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.25, generator=generator)


@pytest.fixture
def make_network() -> Callable[..., MotionMMDiT]:
    def make(**changes: Any) -> MotionMMDiT:
        network = MotionMMDiT(small_config(**changes), TRAIN_FRAMES)
        randomise(network)
        return network

    return make


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(3, 30, 201, generator=generator),
        "context": torch.randn(3, 8, 20, generator=generator),
        "vector": torch.randn(3, 1, 12, generator=generator),
        "t": torch.tensor([0.1, 0.5, 0.9]),
        "x_length": torch.tensor([30, 17, 1]),
        "context_length": torch.tensor([8, 3, 1]),
    }


@pytest.fixture(autouse=True)
def threads() -> Iterator[Callable[[int], None]]:
    """One thread a test, unless the test sets another number with this function."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)
