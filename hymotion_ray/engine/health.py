"""Before the first step: are all ranks there, and does an all-reduce give what it must? Ray-free.

It names the rank that is missing, hangs or contributes wrong numbers, within seconds, where a
broken group would otherwise wait for half an hour. It knows a process group and its store; it does
not start groups and knows nothing of training.

First a roll call through the store, which needs no collective: each rank leaves its name and waits
for the others'. Then an all-reduce of a table with one row a rank, in which each rank fills its own
row: a wrong row names the rank it came from.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hymotion_ray.engine import faults
from hymotion_ray.errors import ClusterError

_NUM_COLUMNS = 1024
_POLL_S = 0.02
_GRACE_S = 2.0
"""A rank that gives up waits so long, so that the others too can read from the store that the first
one keeps."""
_calls = 0


def check_collectives(timeout_s: float = 30.0, device: torch.device | None = None) -> None:
    """Check the default process group; all ranks call it at about the same time.

    device: where the numbers lie; None: the current GPU for NCCL, else the CPU. timeout_s bounds
    each of the two parts. Raises `ClusterError` that names the ranks at fault, on every rank that
    is still there. Nothing to check without a group or with one rank.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    check = _Check(timeout_s)
    try:
        check.roll_call()
        check.all_reduce(device or _device())
    except ClusterError:
        time.sleep(_GRACE_S)
        raise


def contribution(rank: int, world_size: int, device: torch.device) -> Tensor:
    """What a rank adds to the sum: its own row of (world_size, 1024), whole numbers, else zeros."""
    table = torch.zeros(world_size, _NUM_COLUMNS, device=device)
    table[rank] = _row(rank, device)
    return table


def wrong_rows(total: Tensor) -> list[int]:
    """Ranks whose row of the sum is not what it must be; whole numbers add without rounding."""
    return [
        rank for rank, row in enumerate(total) if not torch.equal(row, _row(rank, total.device))
    ]


def _row(rank: int, device: torch.device) -> Tensor:
    return torch.arange(1.0, _NUM_COLUMNS + 1, device=device) * (rank + 1)


class RollCall:
    """Words that ranks leave in a store, and which ranks have left one.

    store: torch's, what the group meets by; prefix: one of its own for each call.
    """

    def __init__(self, store: Any, rank: int, world_size: int, prefix: str) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.prefix = prefix
        self.hosts: dict[int, str] = {}
        """Hosts of the ranks that were heard of."""

    def sign(self, word: str) -> None:
        """Leave a word with this rank's host."""
        self.store.set(f"{self.prefix}/{word}/{self.rank}", socket.gethostname())

    def absent(self, word: str, deadline: float) -> list[int]:
        """Ranks that have not left the word by `deadline` on the monotonic clock.

        `ClusterError` when the store is gone.
        """
        waiting = set(range(self.world_size))
        while waiting:
            for rank in sorted(waiting):
                key = f"{self.prefix}/{word}/{rank}"
                if self._has(key):
                    self.hosts[rank] = self.store.get(key).decode()
                    waiting.discard(rank)
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
        return sorted(waiting)

    def _has(self, key: str) -> bool:
        try:
            return bool(self.store.check([key]))
        except RuntimeError as error:
            raise ClusterError(
                f"the store that ranks meet at is gone ({error}): rank 0 or its node ended; look"
                " at its log"
            ) from error


class _Check:
    """One check, known in the store by its number: a group may be checked again."""

    def __init__(self, timeout_s: float) -> None:
        global _calls
        _calls += 1
        self.timeout_s = timeout_s
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        self.roll = RollCall(store, self.rank, self.world_size, f"hymotion-health/{_calls}")

    def roll_call(self) -> None:
        """Leave this rank's name and wait for all others'."""
        faults.reach("health-roll-call", f"rank {self.rank}")
        self.roll.sign("here")
        missing = self.roll.absent("here", time.monotonic() + self.timeout_s)
        if missing:
            there = ", ".join(f"{rank} on {host}" for rank, host in sorted(self.roll.hosts.items()))
            raise ClusterError(
                f"rank {_list(missing)} of {self.world_size} did not answer within"
                f" {self.timeout_s:g} s; there are rank {there}. Look at that worker's log, its"
                " node and the way to it, then run the same command again"
            )

    def all_reduce(self, device: torch.device) -> None:
        """Sum the known table and look at each row."""
        faults.reach("health-all-reduce", f"rank {self.rank}")
        total = contribution(self.rank, self.world_size, device)
        self.roll.sign("reducing")
        deadline = time.monotonic() + self.timeout_s
        with self._named_failure(deadline):
            work = dist.all_reduce(total, async_op=True)
            while not work.is_completed() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if not work.is_completed():
                raise TimeoutError(f"no result after {self.timeout_s:g} s")
            work.wait()
        if wrong := wrong_rows(total):
            raise ClusterError(
                f"an all-reduce of known numbers gave wrong ones for {self._names(wrong)}: that"
                " device, its memory or its link is faulty; take the node out and run the same"
                " command again"
            )

    @contextlib.contextmanager
    def _named_failure(self, deadline: float) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            absent = self.roll.absent("reducing", min(deadline, time.monotonic() + 1.0))
            if absent:
                what = f"{self._names(absent)} did not come to the first all-reduce"
            else:
                what = "all ranks came to the first all-reduce, which did not finish"
            raise ClusterError(
                f"{what} ({error}). Data between the nodes is blocked or goes by a wrong"
                " interface: check firewalls, and name the interface by NCCL_SOCKET_IFNAME or"
                " GLOO_SOCKET_IFNAME; `hymotion-ray doctor` tries every pair"
            ) from error

    def _names(self, ranks: Sequence[int]) -> str:
        return "rank " + _list(
            [f"{r} on {self.roll.hosts.get(r, 'an unknown host')}" for r in ranks]
        )


def _device() -> torch.device:
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _list(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))
