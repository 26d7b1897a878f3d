"""Compiles a network's blocks, and lets them be computed twice instead of kept; in place.

Knows by which methods blocks are called. Does not know weights, processes or precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.precision import attention_kernels
from hymotion_ray.model.blocks import DoubleBlock, SingleBlock
from hymotion_ray.model.text_refiner import RefinerBlock

METHODS = ("text", "motion", "text_keys")
"""Methods by which double and single blocks are called instead of `forward`."""
Call = Callable[..., Any]


def prepare_blocks(network: nn.Module, config: ParallelConfig, device: torch.device) -> None:
    """Replace the blocks' methods by compiled or checkpointed ones, as `config` wants.

    Blocks of one kind share their compiled code. Before the blocks are sharded, since gathering
    weights comes around all this.
    """
    if not (config.compile or config.gradient_checkpointing):
        return
    kernels = attention_kernels(device)
    for block in network.modules():
        if isinstance(block, (DoubleBlock, SingleBlock)):
            names = [name for name in METHODS if hasattr(block, name)]
        elif isinstance(block, RefinerBlock):
            names = ["forward"]
        else:
            continue
        for name in names:
            call: Call = getattr(block, name)
            if config.compile:
                call = torch.compile(call, backend=config.compile_backend)
            if config.gradient_checkpointing:
                call = partial(_recomputed, call, kernels)
            setattr(block, name, call)


def _recomputed(call: Call, kernels: list[SDPBackend], *inputs: Any) -> Any:
    # Nothing in the network draws random numbers, so no random state is kept.
    return checkpoint(
        partial(_with_kernels, call, kernels),
        *inputs,
        use_reentrant=False,
        preserve_rng_state=False,
    )


def _with_kernels(call: Call, kernels: list[SDPBackend], *inputs: Any) -> Any:
    """The call under the kernels of the forward pass, which the backward pass has left."""
    with sdpa_kernel(kernels):
        return call(*inputs)
