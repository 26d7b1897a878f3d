"""Splits a network's weights, gradients and optimizer state over processes by `fully_shard`.

Knows which parts of the motion network are called on their own and so must gather their own
weights: the sampler and the forward pass call a block's `text`, `motion` and `text_keys`, and the
modulations beside them. Does not know optimizers.
"""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.block_calls import METHODS
from hymotion_ray.engine.train.comm_hooks import reduced_dtype
from hymotion_ray.model.blocks import DoubleBlock, FinalLayer, SingleBlock
from hymotion_ray.model.layers import Modulation
from hymotion_ray.model.text_refiner import RefinerBlock

BLOCKS = (DoubleBlock, SingleBlock)


def shard(
    module: nn.Module, config: ParallelConfig, device: torch.device, num_ranks: int
) -> nn.Module:
    """Shard `module` in place over all ranks, block by block; returns it.

    zero2 keeps the gathered weights from the forward to the backward pass, zero3 lets go of them
    after each block and gathers them again.
    """
    # Blocks return views, which nobody here changes in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (num_ranks,))
    policy = MixedPrecisionPolicy(reduce_dtype=reduced_dtype(config), cast_forward_inputs=False)
    reshard = config.strategy == "zero3"
    for part in _units(module):
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        if isinstance(part, BLOCKS):
            for name in METHODS:
                if hasattr(part, name):
                    register_fsdp_forward_method(part, name)
    # The root holds the few weights outside of blocks; it is needed again at once in the backward.
    fully_shard(module, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    if not reshard:
        for sharded in _sharded(module):
            # A block's backward comes in two halves: let go after both, in `let_go`.
            sharded.set_reshard_after_backward(False, recurse=False)
    return module


def let_go(module: nn.Module) -> None:
    """Free gathered weights that the backward pass has left, so that at rest a rank has its part.

    Nothing for a module that is not sharded.
    """
    for part in _sharded(module):
        part.reshard()


def _sharded(module: nn.Module) -> list[FSDPModule]:
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def _units(module: nn.Module) -> list[nn.Module]:
    """Parts that gather their own weights, inner ones before the ones that hold them."""
    modulations = [
        inner
        for part in module.modules()
        if isinstance(part, (*BLOCKS, FinalLayer))
        for inner in part.children()
        if isinstance(inner, Modulation)
    ]
    holders = (*BLOCKS, FinalLayer, RefinerBlock)
    return modulations + [part for part in module.modules() if isinstance(part, holders)]
