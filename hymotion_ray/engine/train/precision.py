"""Arithmetic of a training pass: autocast, attention kernels and the scaler of float16's loss.

Knows number formats and kernels. Does not know processes, optimizers or what a network means.
Weights stay float32 in every format; only matrix products and attention run in the lower one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hymotion_ray.config.parallel import ParallelConfig, TrainPrecision

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CPU_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
# PyTorch 2.11's memory-efficient attention faults in its masked backward on an H200 (seen here), so
# a GPU uses the plain form; at the sizes trained here it costs little, at the full one it keeps its
# softmax (see `fit.py`).
_CUDA_KERNELS = [SDPBackend.MATH]


def attention_kernels(device: torch.device) -> list[SDPBackend]:
    """Kernels of attention that training may use on a device."""
    return _CUDA_KERNELS if device.type == "cuda" else _CPU_KERNELS


class Arithmetic(nn.Module):
    """A network whose forward pass runs in a number format; called as the network is.

    kernels: of attention; None: those of `device`.
    """

    def __init__(
        self,
        network: nn.Module,
        precision: TrainPrecision,
        device: torch.device,
        kernels: list[SDPBackend] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self._dtype = _DTYPES[precision]
        self._device = device
        self._kernels = kernels or attention_kernels(device)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The network's output of the same inputs."""
        # Without the cache of cast weights, which a CUDA graph must not keep.
        autocast = torch.autocast(
            self._device.type,
            self._dtype if self._dtype != torch.float32 else torch.bfloat16,
            enabled=self._dtype != torch.float32,
            cache_enabled=False,
        )
        with sdpa_kernel(self._kernels), autocast:
            output: Tensor = self.network(*inputs)
        return output


def make_scaler(config: ParallelConfig, device: torch.device) -> torch.amp.GradScaler | None:
    """The scaler that keeps float16 gradients above zero; None in the other formats."""
    if config.precision != "float16":
        return None
    return torch.amp.GradScaler(device.type, init_scale=config.loss_scale)
