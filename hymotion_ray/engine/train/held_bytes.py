"""Bytes that a rank holds: weights, gradients, optimizer state, and what a pass keeps for backward.

Counts tensors, whatever the device. Does not know switches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from hymotion_ray.engine.train.full_state import local


class HeldBytes(NamedTuple):
    """Bytes of one rank."""

    parameters: int
    gradients: int
    optimizer: int


def held_bytes(network: nn.Module, optimizer: Optimizer | None) -> HeldBytes:
    """What this rank holds now of `network`'s weights and gradients, and of `optimizer`'s state."""
    parameters = list(network.parameters())
    states = () if optimizer is None else optimizer.state.values()
    return HeldBytes(
        parameters=_storage(parameters),
        gradients=_storage(p.grad for p in parameters if p.grad is not None),
        optimizer=_storage(v for state in states for v in state.values() if isinstance(v, Tensor)),
    )


def saved_bytes(call: Callable[[], Any], network: nn.Module) -> int:
    """Bytes of activations that `call`, a forward pass, keeps for the backward pass.

    Each piece of memory counts once; the network's own weights do not count.
    """
    # By storage objects, not addresses: tensors without content have none.
    own = {p.untyped_storage()._cdata for p in map(local, network.parameters())}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        output = call()
    del output
    return sum(storage.nbytes() for storage in kept.values())


def _storage(tensors: Iterable[Tensor]) -> int:
    parts = [local(tensor.detach()) for tensor in tensors]
    return sum(part.numel() * part.element_size() for part in parts)
