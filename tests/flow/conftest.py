"""A small random network, its sampler, and a condition of six prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hymotion_ray.config import Grid, NetworkConfig
from hymotion_ray.flow import Sampler
from hymotion_ray.model import MotionMMDiT

TRAIN_FRAMES = 40
GRID = Grid(rows=3, text_rows=4, frame_step=10, token_cells=(4, 8))


@pytest.fixture
def make_sampler() -> Callable[..., Sampler]:
    """`make(network={...}, **sampler settings)`: equal settings give equal weights."""

    def make(network: dict[str, Any] | None = None, **settings: Any) -> Sampler:
        values: dict[str, Any] = {
            "feat_dim": 16,
            "num_layers": 3,
            "num_heads": 2,
            "ctxt_input_dim": 10,
            "vtxt_input_dim": 6,
            "mask_mode": "narrowband",
            "narrowband_length": 0.2,
            "apply_rope_to_single_branch": False,
            "time_factor": 1000.0,
            "insert_start_token": True,
        }
        built = MotionMMDiT(NetworkConfig(**values | (network or {})), TRAIN_FRAMES)
        generator = torch.Generator().manual_seed(0)
        for parameter in built.parameters():
            nn.init.normal_(parameter, std=0.25, generator=generator)
        return Sampler(
            built,
            null_vector=torch.full((1, 1, 6), 0.3),
            null_context=torch.full((1, 1, 10), -0.4),
            train_frames=TRAIN_FRAMES,
            **{"grid": GRID} | settings,
        )

    return make


@pytest.fixture
def condition() -> tuple[Tensor, Tensor, Tensor]:
    """Context (6, 8, 10), vector (6, 1, 6) and lengths, the empty one among them."""
    generator = torch.Generator().manual_seed(1)
    context = torch.randn(6, 8, 10, generator=generator)
    vector = torch.randn(6, 1, 6, generator=generator)
    return context, vector, torch.tensor([8, 3, 5, 0, 1, 3])


@pytest.fixture(autouse=True)
def threads() -> Iterator[Callable[[int], None]]:
    """One thread a test, unless the test sets another number with this function."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)
