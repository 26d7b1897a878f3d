"""Bytes that training sends: measured where the kernel counts them, computed elsewhere.

Gloo sends by the sockets of this process, and Linux counts what a process writes. NCCL writes from
the GPU, where nobody counts: there the bytes are those of ring algorithms. Does not know networks.
"""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from hymotion_ray.config.parallel import ParallelConfig

_IO = Path("/proc/self/io")
_GRADIENT_BYTES = {"none": 4, "fp16": 2, "bf16": 2, "powersgd": 4}


def written_bytes() -> int | None:
    """Bytes that this process has written so far, to sockets and files; None where unknown."""
    try:
        lines = _IO.read_text("ascii").splitlines()
    except OSError:
        return None
    counts = dict(line.split(": ") for line in lines)
    return int(counts["wchar"])


def is_counted() -> bool:
    """Whether what the default group sends shows in `written_bytes`."""
    return dist.is_initialized() and dist.get_backend() == "gloo" and written_bytes() is not None


def expected_bytes(config: ParallelConfig, num_trained: int, num_all: int, num_ranks: int) -> int:
    """Bytes a rank sends in a step of one pass with ring algorithms; PowerSGD counts as if plain.

    num_trained, num_all: numbers in trained weights and in all. An all-reduce of s bytes sends
    2 s (n-1)/n, a reduce-scatter and an all-gather s (n-1)/n. Source: Rajbhandari et al., ZeRO
    (2020), section 7. Single blocks are called twice a pass, text half and motion half, so zero3
    gathers them twice and both sharded strategies send their gradients twice: this counts
    everything twice, an upper bound.
    """
    share = (num_ranks - 1) / num_ranks
    gradients = num_trained * _GRADIENT_BYTES[config.comm_hook] * share
    weights = num_all * 4 * share
    if config.strategy == "ddp":
        total = 2 * gradients
    elif config.strategy == "zero1":
        total = 2 * gradients + num_trained * 4 * share
    elif config.strategy == "zero2":
        total = 2 * gradients + weights
    else:
        total = 2 * gradients + 4 * weights
    return round(total)
