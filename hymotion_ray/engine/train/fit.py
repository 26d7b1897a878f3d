"""What one rank of a training run takes of a card's memory: computed, for any switches.

Weights, gradients and optimizer state come from the shape and the strategy; what a pass keeps for
its backward is counted on tensors without content, by the very network and switches that train.
Knows no card. Nothing here was measured on a GPU: `bench_train_switches.py` compares where one is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.block_calls import prepare_blocks
from hymotion_ray.engine.train.held_bytes import saved_bytes
from hymotion_ray.engine.train.lora import choose_trained, num_trained
from hymotion_ray.engine.train.precision import Arithmetic, attention_kernels
from hymotion_ray.model.mmdit import MotionMMDiT

_CPU, _GPU = torch.device("cpu"), torch.device("cuda")
_WINDOW = 360
_CONTEXT_BYTES = int(0.55 * 2**30)
"""What CUDA takes of a card for a process: a usual figure."""
_SPARE = 0.05
"""Share that the allocator loses between pieces: an assumption."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Bytes of one rank at its fullest, in the backward pass."""

    weights: int
    gathered: int
    """Whole numbers beside the rank's part: all weights in zero2, two blocks' in zero3, and in both
    the gradients of two blocks on their way."""
    gradients: int
    optimizer: int
    """AdamW's two moments."""
    mean: int
    """The running mean of what is trained."""
    activations: int
    """What passes keep, and one block's again where blocks are recomputed."""
    context: int = _CONTEXT_BYTES

    @property
    def total(self) -> int:
        """All of it, with the allocator's loss."""
        parts = sum(getattr(self, f.name) for f in fields(self)) - self.context
        return round(parts * (1 + _SPARE)) + self.context


def fit(
    network: NetworkConfig,
    config: ParallelConfig,
    *,
    rows: int,
    num_frames: int = 360,
    num_tokens: int = 40,
    num_ranks: int = 1,
) -> Fit:
    """Memory of a rank that trains `rows` clips of `num_frames` frames at once.

    On a GPU attention runs in its plain form (see `precision.py`), which keeps its softmax.
    """
    model = _shape(network, config)
    trained, weights = num_trained(model)
    largest = max(num_trained(b)[1] for b in (*model.double_blocks, *model.single_blocks))
    part = num_ranks if config.strategy in ("zero2", "zero3") else 1
    moments = 1 if config.strategy == "ddp" else num_ranks
    gathered = {"zero2": weights + 2 * largest, "zero3": 4 * largest}.get(config.strategy, 0)
    return Fit(
        weights=4 * weights // part,
        gathered=4 * gathered if num_ranks > 1 else 0,
        gradients=4 * trained // part,
        optimizer=8 * trained // moments,
        mean=4 * trained // part,
        activations=_activations(network, config, rows, num_frames, num_tokens),
    )


@lru_cache(maxsize=64)
def pass_bytes(
    network: NetworkConfig,
    config: ParallelConfig,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
) -> int:
    """Bytes that a forward pass keeps for its backward, counted without computing anything."""
    model = _shape(network, config)
    with FakeTensorMode():
        _fill(model)
        prepare_blocks(model, config, _GPU)
        module = Arithmetic(model, config.precision, _CPU, attention_kernels(_GPU))
        inputs = (
            torch.empty(rows, num_frames, network.input_dim),
            torch.empty(rows, num_tokens, network.ctxt_input_dim),
            torch.empty(rows, 1, network.vtxt_input_dim),
            torch.empty(rows),
            torch.full((rows,), num_frames),
            torch.full((rows,), num_tokens),
        )
        return saved_bytes(lambda: module(*inputs), model)


def _activations(
    network: NetworkConfig, config: ParallelConfig, rows: int, num_frames: int, num_tokens: int
) -> int:
    def count(settings: ParallelConfig) -> int:
        # Whatever spreads the work changes nothing here.
        settings = dataclasses.replace(settings, strategy="ddp", comm_hook="none", compile=False)
        return pass_bytes(
            network, settings, rows=rows, num_frames=num_frames, num_tokens=num_tokens
        )

    kept = count(config)
    if config.gradient_checkpointing:
        whole = count(dataclasses.replace(config, gradient_checkpointing=False))
        kept += whole // network.num_layers
    return kept


def _shape(network: NetworkConfig, config: ParallelConfig) -> MotionMMDiT:
    """The network as it is trained, without memory for its numbers."""
    with torch.device("meta"):
        model = MotionMMDiT(network, _WINDOW)
        choose_trained(model, config)
    return model


def _fill(model: nn.Module) -> None:
    """Weights that look as if they lay on a CPU, where autocast knows them; in a fake mode."""
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None:
                empty = torch.empty(held.shape)
                module._parameters[name] = nn.Parameter(empty, requires_grad=held.requires_grad)
