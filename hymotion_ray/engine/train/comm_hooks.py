"""What DistributedDataParallel sends instead of float32 gradients. Knows messages, no networks."""

# Annotations stay real types here: torch looks at those of a hook.
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.errors import ConfigError

_REDUCED = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16, "powersgd": None}


def check_backend(config: ParallelConfig) -> None:
    """Raise `ConfigError` where the processes' backend cannot carry what the hook sends."""
    backend = dist.get_backend()
    if config.comm_hook == "bf16" and "nccl" not in backend:
        raise ConfigError(
            f"comm_hook is 'bf16' on the backend {backend!r}; allowed: bf16 with nccl (GPUs), "
            "which alone adds bfloat16 numbers here; take fp16, powersgd or none"
        )


def add_hook(
    module: DistributedDataParallel, config: ParallelConfig
) -> powerSGD_hook.PowerSGDState | None:
    """Register the hook that `config` names; returns the state of PowerSGD.

    PowerSGD: Vogels, Karimireddy, Jaggi, PowerSGD (2019). Its error feedback is part of no
    checkpoint: after a resume it starts from zero.
    """
    check_backend(config)
    if config.comm_hook == "fp16":
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif config.comm_hook == "bf16":
        module.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif config.comm_hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=config.powersgd_rank,
            start_powerSGD_iter=config.powersgd_start,
        )
        hook = _in_turn if dist.get_backend() == "gloo" else powerSGD_hook.powerSGD_hook
        module.register_comm_hook(state, hook)
        return state
    return None


def forget_errors(state: powerSGD_hook.PowerSGDState) -> None:
    """Start error feedback from zero: after a gradient that was not finite it would stay so."""
    for kept in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
        kept.clear()


def _in_turn(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """PowerSGD of one bucket after the other.

    Its later messages start from callbacks, which gloo runs in threads of their own: those of two
    buckets could leave in one order here and in another on the next rank (seen).
    """
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


def reduced_dtype(config: ParallelConfig) -> torch.dtype | None:
    """The number format that sharded gradients are summed in; None is their own."""
    check_backend(config)
    return _REDUCED[config.comm_hook]
