"""What one rank of a training run takes of a card's memory: computed, for any switches.

Weights, gradients and optimizer state are `planning.training_memory`'s; what a pass keeps for its
backward is counted on tensors without content, by the very network and switches that train. Knows
no card. `benchmarks/bench_memory.py` compares where a GPU is.
"""

from __future__ import annotations

import dataclasses
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
from hymotion_ray.planning.memory import Memory
from hymotion_ray.planning.training_memory import training_memory

_CPU, _GPU = torch.device("cpu"), torch.device("cuda")
_WINDOW = 360


def fit(
    network: NetworkConfig,
    config: ParallelConfig,
    *,
    rows: int,
    num_frames: int = 360,
    num_tokens: int = 40,
    num_ranks: int = 1,
) -> Memory:
    """Memory of a rank that trains `rows` clips of `num_frames` frames at once.

    What a pass keeps is counted with the attention of `config` as a GPU has it: band attention
    keeps no scores, dense attention is in its plain form (see `precision.py`) and keeps its
    softmax.
    """
    model = _shape(network, config)
    return training_memory(
        network,
        config,
        rows=rows,
        num_frames=num_frames,
        num_tokens=num_tokens,
        num_ranks=num_ranks,
        num_trained=num_trained(model)[0],
        kept_bytes=_activations(network, config, rows, num_frames, num_tokens),
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
    # A CPU's fused attention keeps what band attention keeps on a GPU: queries, keys, values, the
    # output, and one sum a query and head.
    where = _GPU if config.attention == "dense" else _CPU
    with FakeTensorMode():
        _fill(model)
        prepare_blocks(model, config, where)
        module = Arithmetic(model, config.precision, _CPU, attention_kernels(where))
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
