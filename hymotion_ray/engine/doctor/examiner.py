"""The process that examines one node: an actor pinned to it, and the only part that runs there."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hymotion_ray.engine.doctor.facts import NodeFacts, clock, node_facts
from hymotion_ray.engine.doctor.faults import fault
from hymotion_ray.engine.doctor.links import Listener, can_reach, send
from hymotion_ray.errors import ClusterError, HyMotionError
from hymotion_ray.formats.atomic import Store, open_store

Target = tuple[str, int, str]
"""Address, port, and what the port is for."""
_SHARE_GRACE_S = 5.0
_STORE_GRACE_S = 2.0
"""How long the rank that keeps the store stays for others that still look into it."""
_CONNECTS_AT_ONCE = 16


class Examiner:
    """Answers questions about its node."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._listeners: list[Listener] = []

    def facts(self) -> NodeFacts:
        """What the node has."""
        return node_facts(self._ip, os.environ.get("RAY_TMPDIR") or "/tmp/ray")

    def clock(self) -> float:
        """Its time."""
        return clock()

    def listen(self, ports: Sequence[int]) -> int:
        """Open a port for others to try, and those of `ports` that are free; the port."""
        for port in (0, *ports):
            with contextlib.suppress(OSError):  # somebody listens there: all the better
                self._listeners.append(Listener(self._ip, port))
        return self._listeners[0].port

    def reach(self, targets: Sequence[Target]) -> list[str | None]:
        """Why each target cannot be reached from here; None for those that can."""
        with ThreadPoolExecutor(_CONNECTS_AT_ONCE) as pool:
            return list(pool.map(lambda target: can_reach(*target), targets))

    def send(self, ip: str, port: int, num_bytes: int) -> float | str:
        """Gbit/s to a listener there, or what went wrong."""
        try:
            return send(ip, port, num_bytes)
        except OSError as error:
            return str(error)

    # --- storage ----------------------------------------------------------------------------------

    def write(self, place: str, name: str, text: str) -> str | None:
        """Write a small file at a shared folder or store; what went wrong, or None."""
        try:
            _place(place).write_bytes(name, text.encode())
        except HyMotionError as error:
            return str(error)
        return None

    def read(self, place: str, names: Sequence[str], text: str) -> list[str | None]:
        """What is wrong with each file that must hold `text` by now; None where it does."""
        return [_read(_place(place), name, text) for name in names]

    def remove(self, place: str, name: str) -> None:
        """Clear up after `write`."""
        with contextlib.suppress(HyMotionError):
            _place(place).remove(name)

    # --- all-reduce -------------------------------------------------------------------------------

    def free_port(self) -> int:
        """A port that is free now."""
        with socket.create_server((self._ip, 0)) as probe:
            port: int = probe.getsockname()[1]
            return port

    def prepare(self) -> None:
        """Load torch, so that no rank waits for another's import."""
        import torch.distributed  # noqa: F401

    def all_reduce(
        self, backend: str, master: tuple[str, int], rank: int, world_size: int, timeout_s: float
    ) -> tuple[list[int], str | None]:
        """Join a group of all and sum known numbers: ranks that did not come, what went wrong."""
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        from hymotion_ray.engine.health import RollCall, check_collectives

        if fault("absent"):
            return [], None
        limit = datetime.timedelta(seconds=timeout_s)
        missing: list[int] = []
        try:
            try:
                store = dist.TCPStore(  # type: ignore[attr-defined]
                    *master, world_size, rank == 0, limit, wait_for_workers=False
                )
            except RuntimeError:
                if rank == 0:
                    raise
                return [0], None  # it keeps the store
            roll = RollCall(store, rank, world_size, "hymotion-doctor")
            roll.sign("here")
            missing = roll.absent("here", time.monotonic() + timeout_s)
            if missing:
                time.sleep(_STORE_GRACE_S if rank == 0 else 0)
                return missing, None
            group = c10d.PrefixStore("group", store)
            dist.init_process_group(
                backend, store=group, rank=rank, world_size=world_size, timeout=limit
            )
            check_collectives(timeout_s)
        except (ClusterError, RuntimeError, ValueError) as error:
            return missing, str(error).strip().splitlines()[0]
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        return [], None


def _place(place: str) -> Store:
    simulated = fault("share")
    return open_store(simulated if simulated and "://" not in place else place)


def _read(store: Store, name: str, text: str) -> str | None:
    """Read until the file holds `text` or a few seconds are over: network disks cache a little."""
    problem = None
    deadline = time.monotonic() + _SHARE_GRACE_S
    while True:
        if "://" not in store.root:
            with contextlib.suppress(OSError):  # a listing makes NFS look again
                os.listdir(Path(store.root))
        try:
            held = store.read_bytes(name).decode() if store.exists(name) else None
        except HyMotionError as error:
            return str(error)
        if held == text:
            return None
        problem = "is not there" if held is None else "holds what was there before"
        if time.monotonic() > deadline:
            return problem
        time.sleep(0.2)
