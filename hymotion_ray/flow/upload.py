"""Small numbers to and from a device, sent without waiting for what the device is at.

A plain copy from the host waits until everything queued on the GPU is done, and the GPU then waits
for the host's next launch; a copy from pinned memory takes its place in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` (n,) as a tensor of `dtype` on `device`."""
    return send(torch.tensor(values, dtype=dtype), device)


def send(x: Tensor, device: torch.device) -> Tensor:
    """`x` on `device`, by way of pinned memory where that is another one's."""
    if device.type == "cuda" and not x.is_cuda:
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def fetch(x: Tensor) -> Tensor:
    """`x` on the CPU; of a GPU's tensor the values are there once the GPU has come to this copy."""
    if not x.is_cuda:
        return x
    own = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return own.copy_(x, non_blocking=True)
