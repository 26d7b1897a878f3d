"""What the processes that share a network say to each other, and how much of it there was.

Knows `torch.distributed` and no layers. Works on NCCL and on gloo; inference only, nothing here has
a gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


class Wire:
    """One group of processes. `num_bytes` counts what this process put on the wire."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.num_bytes = 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all processes' x, in place."""
        self._count(x)
        dist.all_reduce(x, group=self.group)
        return x

    def join(self, x: Tensor, dim: int) -> Tensor:
        """All processes' x, one after the other along `dim`; equal shapes everywhere."""
        self._count(x)
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self.group)
        return torch.cat(parts, dim=dim)

    def send(self, x: Tensor, to: int) -> Callable[[], None]:
        """Start to send x to process `to` of the group; what is returned waits for its end."""
        self._count(x)
        x = x.contiguous()
        work = dist.isend(x, group=self.group, group_dst=to)
        assert work is not None

        def wait(sent: Tensor = x) -> None:
            work.wait()

        return wait

    def receive(self, like: Tensor, source: int) -> Tensor:
        """What process `source` of the group sends next, of the shape and dtype of `like`."""
        x = torch.empty_like(like)
        dist.recv(x, group=self.group, group_src=source)
        return x

    def spread(self, x: Tensor, source: int) -> Tensor:
        """Process `source`'s x, to all, in place."""
        if self.rank == source:
            self._count(x)
        dist.broadcast(x, group=self.group, group_src=source)
        return x

    def _count(self, x: Tensor) -> None:
        self.num_bytes += x.numel() * x.element_size()
