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
        kept_bytes=kept_bytes(
            network, config, rows=rows, num_frames=num_frames, num_tokens=num_tokens
        ),
    )


def most_rows(
    network: NetworkConfig,
    config: ParallelConfig,
    room: int,
    *,
    num_frames: int = 360,
    num_tokens: int = 40,
    num_ranks: int = 1,
) -> int:
    """The most rows that a rank trains at once in `room` bytes; 0 where not one fits."""
    sizes = {"num_frames": num_frames, "num_tokens": num_tokens}
    least = fit(network, config, rows=1, num_ranks=num_ranks, **sizes)
    if least.total > room:
        return 0
    one, two = (kept_bytes(network, config, rows=rows, **sizes) for rows in (1, 2))
    return 1 + (room - (least.total - least.activations) - one) // (two - one)


def kept_bytes(
    network: NetworkConfig,
    config: ParallelConfig,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
) -> int:
    """Bytes that a rank keeps of a pass, and of one block again where blocks are computed twice."""
    # Whatever spreads the work changes nothing here.
    config = dataclasses.replace(config, strategy="ddp", comm_hook="none", compile=False)
    sizes = {"rows": rows, "num_frames": num_frames, "num_tokens": num_tokens}
    kept = pass_bytes(network, config, **sizes)
    if config.gradient_checkpointing:
        whole = dataclasses.replace(config, gradient_checkpointing=False)
        kept += pass_bytes(network, whole, **sizes) // network.num_layers
    return kept


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
