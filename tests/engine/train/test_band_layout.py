"""A network that lays out its batches for band attention trains as it does under the dense mask."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.band_layout import use_band_layout
from hymotion_ray.engine.train.parallel import parallelise
from hymotion_ray.errors import ConfigError
from hymotion_ray.model.mmdit import MotionMMDiT

from . import rank_checks

pytest.importorskip("triton", reason="Triton comes with torch's builds for GPUs")


@pytest.mark.parametrize("start_token", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        ParallelConfig(),
        ParallelConfig(gradient_checkpointing=True),
        ParallelConfig(compile=True, compile_backend="eager"),
    ],
    ids=["plain", "recomputed", "compiled"],
)
def test_band_training_is_dense_training(config: ParallelConfig, start_token: bool) -> None:
    dense, band = (passes(config, start_token, is_band) for is_band in (False, True))
    for ours, theirs in zip(band, dense, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def passes(config: ParallelConfig, start_token: bool, is_band: bool) -> list[Tensor]:
    """Output and gradients of one pass, two rows of unlike lengths."""
    settings = dataclasses.replace(
        rank_checks.NETWORK, insert_start_token=start_token, narrowband_length=0.2
    )
    torch.manual_seed(0)
    network = MotionMMDiT(settings, 64)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2 if parameter.ndim < 2 else 0.1)
    parallel = parallelise(network, config, torch.device("cpu"))
    if is_band:
        use_band_layout(network)
    generator = torch.Generator().manual_seed(1)
    x, context, vector = (
        torch.randn(2, *shape, generator=generator) for shape in ((40, 201), (5, 24), (1, 24))
    )
    lengths = torch.tensor([40, 23]), torch.tensor([5, 0])
    out = parallel.module(x, context, vector, torch.tensor([0.3, 0.8]), *lengths)
    out = torch.cat([out[0], out[1, :23]])
    out.square().mean().backward()
    return [out.detach(), *(p.grad for p in network.parameters() if p.grad is not None)]


@pytest.mark.parametrize("switch", [{"attention": "band"}, {"cuda_graphs": True}])
def test_what_needs_a_gpu_is_refused_on_a_processor(switch: dict[str, Any]) -> None:
    config = dataclasses.replace(ParallelConfig(), **switch)
    with pytest.raises(ConfigError, match=next(iter(switch))):
        parallelise(rank_checks.make_network(), config, torch.device("cpu"))


def test_graphs_and_a_loss_scale_are_refused() -> None:
    with pytest.raises(ConfigError, match="cuda_graphs"):
        ParallelConfig(cuda_graphs=True, precision="float16")
