"""Whole weights and optimizer state from what the ranks hold, and back; the same at any rank count.

Knows tensors by name and who holds them. Does not know files, switches or schedules. Every function
here is a collective: all ranks call it, in the same order. Rank 0 gets and gives the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from hymotion_ray.errors import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq")
"""State of AdamW that has its parameter's shape; beside it `step`, a number."""
Moments = dict[str, dict[str, Tensor]]
"""By parameter name: `step` () and the moments."""


def is_first() -> bool:
    """Whether this process is rank 0, or the only one."""
    return not dist.is_initialized() or dist.get_rank() == 0


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded, on its device."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds, if it is sharded; shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of whole tensors by name, on the CPU, at rank 0; empty elsewhere."""
    result = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if is_first():
            result[name] = full.to("cpu", copy=True)
    return result


@torch.no_grad()
def scatter(state: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Copy rank 0's `state` into the targets of all ranks; others may give an empty mapping.

    Raises `CheckpointError` at every rank where names or shapes differ.
    """
    _agree(lambda: _mismatch(state, {name: t.shape for name, t in targets.items()}))
    for name, target in targets.items():
        target.copy_(_spread(state.get(name), target))


@torch.no_grad()
def gather_moments(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> Moments:
    """AdamW's state of all parameters at rank 0, copied to the CPU; empty elsewhere.

    `optimizer` is the one that holds this rank's part; with ZeRO-1 the inner one. A parameter that
    has not been stepped yet is left out.
    """
    result: Moments = {}
    for (name, parameter), owner in zip(
        parameters.items(), _owners(optimizer, list(parameters.values())), strict=True
    ):
        if owner is None:
            continue
        held = optimizer.state.get(parameter, {})
        for key in ("step", *MOMENTS):
            tensor = held.get(key)
            if key == "step":
                empty = torch.zeros((), device=parameter.device)
                tensor = None if tensor is None else torch.as_tensor(tensor).to(empty)
            else:
                empty = torch.empty_like(local(parameter))
            full = _from_owner(owner, tensor, empty)
            if is_first():
                result.setdefault(name, {})[key] = full.to("cpu", copy=True)
    return result


@torch.no_grad()
def scatter_moments(
    moments: Moments, optimizer: Optimizer, parameters: Mapping[str, Tensor]
) -> None:
    """Give each rank its part of rank 0's AdamW state; others may give an empty mapping.

    Raises `CheckpointError` at every rank where names or shapes differ.
    """
    _agree(lambda: _wrong_moments(moments, parameters))
    known = share({name: name in moments for name in parameters})
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    places = {id(parameter): i for i, parameter in enumerate(owned)}
    state: dict[int, dict[str, Tensor]] = {}
    for name, parameter in parameters.items():
        if not known[name]:
            continue
        mine = moments.get(name, {})
        step = _spread(mine.get("step"), torch.zeros((), device=parameter.device))
        parts = {key: _spread(mine.get(key), parameter) for key in MOMENTS}
        if id(parameter) in places:
            state[places[id(parameter)]] = {"step": step.cpu(), **parts}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _owners(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[int | None]:
    """For each parameter the first rank that holds its state; None where none does."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    world = dist.get_world_size() if dist.is_initialized() else 1
    holders = [rank if optimizer.state.get(p) else world for p in parameters]
    if world > 1 and parameters:
        table = torch.tensor(holders, device=parameters[0].device)
        dist.all_reduce(table, dist.ReduceOp.MIN)
        holders = table.tolist()
    return [owner if owner < world else None for owner in holders]


def _from_owner(owner: int, tensor: Tensor | None, empty: Tensor) -> Tensor:
    """The whole of a tensor that all ranks hold parts of, or that `owner` alone may hold."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    if owner == 0:
        return tensor if tensor is not None else empty
    if dist.get_rank() == owner:
        assert tensor is not None
        dist.send(tensor.contiguous(), dst=0)
        return tensor
    if is_first():
        dist.recv(empty, src=owner)
    return empty


def _spread(full: Tensor | None, like: Tensor) -> Tensor:
    """Rank 0's `full` at every rank, sharded as `like` is and on its device; a new tensor."""
    if isinstance(like, DTensor):
        if full is None:
            value = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        else:
            value = full.to(like.device, like.dtype)
        return distribute_tensor(value, like.device_mesh, like.placements)
    value = torch.empty_like(like) if full is None else full.to(like, copy=True)
    value = value.detach().contiguous()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast(value, src=0)
    return value


def share(value: Any) -> Any:
    """Rank 0's value of a small object, at every rank."""
    words = [value]
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(words, src=0)
    return words[0]


def _agree(check: Callable[[], str | None]) -> None:
    """Raise `CheckpointError` at every rank if rank 0's check finds a fault."""
    words = share(check() if is_first() else None)
    if words:
        raise CheckpointError(words)


def _mismatch(state: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> str | None:
    missing = sorted(shapes.keys() - state.keys())
    unknown = sorted(state.keys() - shapes.keys())
    if missing or unknown:
        return (
            f"the weights do not fit this network: missing {missing[:5] or 'none'}, unknown "
            f"{unknown[:5] or 'none'} ({len(missing)} and {len(unknown)} names); load the "
            "checkpoint that this configuration wrote"
        )
    for name, shape in shapes.items():
        if state[name].shape != shape:
            return (
                f"{name} has the shape {tuple(state[name].shape)}; allowed: {tuple(shape)}, that "
                "of this network"
            )
    return None


def _wrong_moments(moments: Moments, parameters: Mapping[str, Tensor]) -> str | None:
    unknown = sorted(moments.keys() - parameters.keys())
    if unknown:
        return (
            f"the optimizer state speaks of {unknown[:5]} ({len(unknown)} names), which this run "
            "does not train; resume with the same lora_rank and trainable patterns"
        )
    for name, held in moments.items():
        for key in MOMENTS:
            if key not in held or held[key].shape != parameters[name].shape:
                return (
                    f"the optimizer state of {name} has no {key} of the shape "
                    f"{tuple(parameters[name].shape)}; load the state of this network"
                )
    return None
