"""When the fused kernels serve a network. Imports Triton only where they do."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from hymotion_ray.errors import ConfigError
from hymotion_ray.model.mmdit import MotionMMDiT

if TYPE_CHECKING:
    from hymotion_ray.model.fused.network import FusedMMDiT

HEAD_DIM = 64
"""Head width that the kernels are written for: that of both released models."""
_MIN_CAPABILITY = (8, 0)


def why_plain(network: MotionMMDiT) -> str | None:
    """Why `network` is computed by plain torch; None where the fused kernels can."""
    config = network.config
    if network.device.type != "cuda":
        return f"the kernels are for CUDA devices, this one is {network.device.type}"
    if torch.cuda.get_device_capability(network.device) < _MIN_CAPABILITY:
        return "the kernels are for compute capability 8.0 and later"
    if network.dtype not in (torch.bfloat16, torch.float16):
        return f"the kernels are for 16-bit weights, these are {network.dtype}"
    if config.head_dim != HEAD_DIM:
        return f"the kernels are for heads of width {HEAD_DIM}, these have {config.head_dim}"
    if config.insert_start_token or config.with_long_skip_connection:
        return "the kernels know neither start tokens nor long skip connections"
    if find_spec("triton") is None:
        return "Triton is not installed"
    return None


def fused_or_plain(network: MotionMMDiT, *, float8: bool = False) -> MotionMMDiT | FusedMMDiT:
    """`network` on fused kernels where they can serve it, else itself.

    With `float8`, motion's products are in float8, which these kernels alone have: `ConfigError`
    where they cannot serve.
    """
    why = why_plain(network)
    if why is not None and float8:
        raise ConfigError(
            f"precision is 'float8', but {why}; take auto, or a model of the released kind"
        )
    if why is not None:
        return network
    from hymotion_ray.model.fused.network import FusedMMDiT

    return FusedMMDiT(network, float8=float8)
