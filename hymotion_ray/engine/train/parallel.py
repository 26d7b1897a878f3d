"""One network on several processes: averages or shards it, and steps, clips, saves and loads alike.

`parallelise` maps the switches of `ParallelConfig` to torch and returns a `Parallel`, which looks
the same whatever they are. Knows processes and state. Does not know batches, schedules or files.
With one process and the defaults all of it is plain torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from hymotion_ray.config.parallel import SHARDED, ParallelConfig
from hymotion_ray.engine.train import full_state
from hymotion_ray.engine.train.band_layout import choose_attention
from hymotion_ray.engine.train.block_calls import prepare_blocks
from hymotion_ray.engine.train.comm_hooks import add_hook, forget_errors
from hymotion_ray.engine.train.held_bytes import HeldBytes, held_bytes
from hymotion_ray.engine.train.lora import choose_trained, merge, own_names
from hymotion_ray.engine.train.precision import Arithmetic, make_scaler
from hymotion_ray.engine.train.sharding import let_go, shard
from hymotion_ray.errors import CheckpointError, ConfigError


class Parallel:
    """A network as this process trains it. Made by `parallelise`."""

    def __init__(
        self,
        network: nn.Module,
        module: nn.Module,
        config: ParallelConfig,
        device: torch.device,
        powersgd: PowerSGDState | None = None,
    ) -> None:
        self.module = module
        """Called as the network is; its gradients are averaged over the processes."""
        self.config = config
        self.device = device
        self._network = network
        self._powersgd = powersgd
        self._scaler = make_scaler(config, device)
        self._unscaled = False
        self._optimizer: Optimizer | None = None

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters by name; sharded ones are `DTensor`s."""
        named = own_names(dict(self._network.named_parameters()))
        return {name: p for name, p in named.items() if p.requires_grad}

    def make_optimizer(
        self, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> Optimizer:
        """AdamW over the trained parameters: matrices decay, vectors do not. Call it once."""
        assert self._optimizer is None, "a Parallel has one optimizer"
        trained = list(self.parameters.values())
        groups = [
            {"params": [p for p in trained if p.ndim == 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.ndim != 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        sharded = self.config.strategy in SHARDED and _num_ranks() > 1
        if self.config.strategy == "zero1" and _num_ranks() > 1:
            self._optimizer = ZeroRedundancyOptimizer(
                groups, optimizer_class=AdamW, lr=lr, betas=betas, fused=True
            )
        else:
            self._optimizer = AdamW(groups, lr=lr, betas=betas, fused=not sharded)
        return self._optimizer

    def no_sync(self) -> AbstractContextManager[None]:
        """Within it, passes add to the gradients without sending them: all but the last of a step.

        zero2 and zero3 send all the same, since gradients that wait would be whole ones.
        """
        if isinstance(self.module, DistributedDataParallel):
            return cast("AbstractContextManager[None]", self.module.no_sync())
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss` (), scaled in float16."""
        if self._scaler is None:
            loss.backward()
        else:
            if self._unscaled:  # the step before was left out: settle its scale first
                self._settle(self._scaler)
            self._scaler.scale(loss).backward()
        let_go(self.module)

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Shorten the gradient to `max_norm`; returns its norm () before, over all ranks."""
        self._unscale()
        norm = nn.utils.clip_grad_norm_(list(self.parameters.values()), max_norm)
        norm = full_state.whole(norm)
        if self._powersgd is not None and not norm.isfinite():
            forget_errors(self._powersgd)
        return norm

    def step(self) -> bool:
        """Step the optimizer; False where float16 overflowed: the step was left out."""
        optimizer = self._made_optimizer()
        if self._scaler is None:
            optimizer.step()
            return True
        self._unscale()
        before = self._scaler.get_scale()
        self._scaler.step(optimizer)
        self._settle(self._scaler)
        return self._scaler.get_scale() >= before

    def held(self) -> HeldBytes:
        """Bytes of weights, gradients and optimizer state that this rank holds now."""
        optimizer = None if self._optimizer is None else _inner(self._optimizer)
        return held_bytes(self._network, optimizer)

    def full_state(self) -> dict[str, Tensor]:
        """Copies of all weights on the CPU by the network's own names, at rank 0; else empty.

        Adapters stand beside their layers' weights, as `<layer>.lora_A` and `.lora_B`. A
        collective: all ranks call it.
        """
        return full_state.gather(own_names(self._network.state_dict()))

    def merged_state(self) -> dict[str, Tensor]:
        """As `full_state`, with adapters added to the weights: the network's own names alone."""
        return merge(self.full_state(), self.config)

    def load_full_state(self, state: Mapping[str, Tensor]) -> None:
        """Give every rank its part of what `full_state` returned at rank 0, at any rank count.

        Raises `CheckpointError` where names or shapes differ.
        """
        full_state.scatter(state, own_names(self._network.state_dict()))

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's whole state, and the scaler's, at rank 0; else empty. A collective.

        Plain values and CPU tensors by parameter name, whatever the number of ranks.
        """
        optimizer = self._made_optimizer()
        moments = full_state.gather_moments(_inner(optimizer), self.parameters)
        if not full_state.is_first():
            return {}
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        scaler = None if self._scaler is None else self._scaler.state_dict()
        return {"moments": moments, "groups": groups, "scaler": scaler}

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Take up what `optimizer_state` returned at rank 0; other ranks may give an empty mapping.

        Raises `CheckpointError` where it is another network's, or lacks the scaler's state.
        """
        optimizer = self._made_optimizer()
        groups, scaler = full_state.share((state.get("groups"), state.get("scaler")))
        if groups is None or len(groups) != len(optimizer.param_groups):
            raise CheckpointError(
                "the optimizer state has other parameter groups than this run; resume with the "
                "same trainable patterns and lora_rank"
            )
        if (scaler is None) != (self._scaler is None):
            raise CheckpointError(
                f"the optimizer state {'has no' if scaler is None else 'has a'} loss scale, and "
                f"precision is {self.config.precision!r}; resume with the precision that it was "
                "saved under"
            )
        full_state.scatter_moments(state.get("moments", {}), _inner(optimizer), self.parameters)
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            group.update(saved)
        if self._scaler is not None:
            self._scaler.load_state_dict(scaler)
            self._unscaled = False

    def _unscale(self) -> None:
        if self._scaler is not None and not self._unscaled:
            self._scaler.unscale_(self._made_optimizer())
            self._unscaled = True

    def _settle(self, scaler: torch.amp.GradScaler) -> None:
        scaler.update()
        self._unscaled = False

    def _made_optimizer(self) -> Optimizer:
        assert self._optimizer is not None, "make_optimizer comes first"
        return self._optimizer


def parallelise(network: nn.Module, config: ParallelConfig, device: torch.device) -> Parallel:
    """Place `network` on `device` and spread it over the processes of the default group, if any.

    All ranks start from rank 0's weights. `network` itself is changed: use `.module` from here on.
    Raises `ConfigError` for switches that this group's backend cannot carry.
    """
    if config.cuda_graphs and (device.type != "cuda" or _num_ranks() > 1):
        raise ConfigError(
            f"cuda_graphs is on with {_num_ranks()} workers on {device.type}; allowed: one worker "
            "on a CUDA device; set parallel.cuda_graphs=false"
        )
    choose_trained(network, config)
    network.to(device)
    choose_attention(network, config, device)
    prepare_blocks(network, config, device)
    arithmetic = Arithmetic(network, config.precision, device)
    if not dist.is_initialized() or (_num_ranks() == 1 and config.comm_hook == "none"):
        return Parallel(network, arithmetic, config, device)
    if config.strategy in SHARDED and _num_ranks() > 1:
        _start_alike(network)
        return Parallel(network, shard(arithmetic, config, device, _num_ranks()), config, device)
    module = _averaged(arithmetic, config, device)
    return Parallel(network, module, config, device, add_hook(module, config))


def _averaged(
    module: nn.Module, config: ParallelConfig, device: torch.device
) -> DistributedDataParallel:
    with warnings.catch_warnings():
        # Renamed in torch 2.13; the new name is unknown to 2.6.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        averaged = DistributedDataParallel(
            module,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=config.bucket_mb,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
    return averaged


def _num_ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


@torch.no_grad()
def _start_alike(network: nn.Module) -> None:
    for tensor in (*network.parameters(), *network.buffers()):
        dist.broadcast(tensor, src=0)


def _inner(optimizer: Optimizer) -> Optimizer:
    """The optimizer that holds this rank's state."""
    return optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
