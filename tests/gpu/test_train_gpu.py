"""Training on a GPU: band attention against the dense mask, graphs against plain passes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.config.training import static_model
from hymotion_ray.engine.train.micro_batch import MicroBatch
from hymotion_ray.engine.train.objective import FlowModel
from hymotion_ray.engine.train.parallel import parallelise
from hymotion_ray.engine.train.passes import make_passes
from hymotion_ray.engine.train.step_clock import StepClock
from hymotion_ray.engine.train.tune_job import made_up_inputs
from hymotion_ray.model.attention import motion_mask
from hymotion_ray.model.blocks import SingleBlock
from hymotion_ray.model.rope import rope_table
from hymotion_ray.model.train_attention import band_mask

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")
MODEL = static_model(32, name="try", feat_dim=128, num_layers=3, num_heads=2)


def batch(rows: int, num_frames: int, num_tokens: int) -> MicroBatch:
    inputs = made_up_inputs(MODEL, rows, num_frames, num_tokens)
    weight = torch.linspace(0.5, 1.0, rows)
    return MicroBatch._make((*inputs, weight, ("clip",) * rows, ())).moved(CUDA)


def trained(config: ParallelConfig, shapes: list[tuple[int, int, int]]) -> list[Tensor]:
    """Losses and last weights of steps on batches of these shapes, in passes of two batches."""
    torch.manual_seed(0)
    flow = FlowModel(MODEL, torch.ones(201, dtype=torch.bool))
    parallel = parallelise(flow, config, CUDA)
    parallel.make_optimizer(1e-3, (0.9, 0.98), 0.01)
    passes = make_passes(parallel, StepClock(CUDA), 0.1)
    found = []
    for shape in shapes:
        passes.clear()
        for is_last in (False, True):
            found.append(passes(batch(*shape), is_last=is_last))
        parallel.clip_grad_norm(1.0)
        parallel.step()
    return [*found, *(p.detach() for p in parallel.parameters.values())]


@pytest.mark.parametrize(
    ("config", "shapes"),
    [
        (ParallelConfig(), [(4, 60, 8), (2, 90, 16)]),
        (ParallelConfig(precision="bfloat16", gradient_checkpointing=True), [(4, 60, 8)]),
    ],
    ids=["two shapes", "recomputed"],
)
def test_graphs_train_as_the_pass_as_it_stands(
    config: ParallelConfig, shapes: list[tuple[int, int, int]]
) -> None:
    plain, graphs = (
        trained(dataclasses.replace(config, cuda_graphs=is_graph), 3 * shapes)
        for is_graph in (False, True)
    )
    for ours, theirs in zip(graphs, plain, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_band_attention_is_attention_under_the_dense_mask(
    dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    block = SingleBlock(128, 2, 256).to(CUDA)
    x, modulation = torch.randn(3, 360, 128, device=CUDA), torch.randn(3, 1, 384, device=CUDA)
    text = torch.randn(3, 40, 2, 2, 64, device=CUDA)
    frames, tokens = torch.tensor([360, 100, 1]).cuda(), torch.tensor([40, 0, 5]).cuda()
    rope = rope_table(torch.arange(360, device=CUDA), 64)
    dense = motion_mask(frames, 360, tokens, 40, "narrowband", 60, torch.float32)
    found = []
    for mask, kind in (
        (band_mask(frames, tokens, "narrowband", 60), dtype),
        (dense, torch.float32),
    ):
        block.to(kind)
        inputs = [part.detach().to(kind).requires_grad_() for part in (x, modulation, text)]
        out = block.motion(*inputs[:2], *inputs[2].unbind(2), mask, rope)
        out.backward(torch.linspace(-1, 1, out.numel(), device=CUDA).view_as(out).to(kind))
        found.append([out.detach(), *(part.grad for part in inputs)])
    for ours, theirs in zip(*found, strict=True):
        assert (ours.float() - theirs).norm() < tolerance * theirs.norm()
