"""A worker process, from both sides: the actor that runs stages, and what the driver knows of it.

Workers are actors without restarts of Ray's own: a restarted actor would hold back the calls that
were meant for the dead one until a place is found for it, while here they go to its mates at once.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import ray

from hymotion_ray.engine import faults, pulse
from hymotion_ray.engine.device import (
    cap_gpu_memory,
    device_name,
    device_of_this_process,
    set_threads,
    share_of_gpu,
    torch_memory,
)
from hymotion_ray.engine.peak import peak_bytes
from hymotion_ray.engine.piece import Piece
from hymotion_ray.engine.runner import Receipt, StageRunner
from hymotion_ray.engine.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a process says when its stages are set up."""

    node_id: str
    pid: int
    gpus: tuple[str, ...]
    """GPUs of the node that this process may use, as Ray numbers them."""
    gpu_share: float
    """How much of one GPU it may use."""
    kind: str
    """GPU or processor model."""
    build: str
    """Versions of the libraries that decide bits."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a process says while it works."""

    beats: int
    torch_allocated: int
    torch_reserved: int


@ray.remote(concurrency_groups={"signs": 1})  # type: ignore[call-overload]
class StageWorker:
    """One process of a pool."""

    _name = "a process that could not be made"

    def __init__(self, name: str, stages: Sequence[Stage], is_last: bool, fault_folder: str | None):
        faults.use(fault_folder)
        self._name = name
        self._runner = StageRunner(stages, is_last=is_last)

    def __repr__(self) -> str:
        return self._name

    def start(self) -> Hello:
        """Set up the stages. Not in the constructor, so that errors come back as they are."""
        set_threads(1)  # many processes share a node; a stage that wants more says so
        cap_gpu_memory()
        self._runner.setup()
        context = ray.get_runtime_context()
        return Hello(
            node_id=context.get_node_id(),
            pid=os.getpid(),
            gpus=tuple(str(g) for g in ray.get_gpu_ids()),
            gpu_share=share_of_gpu(),
            kind=device_name(device_of_this_process()),
            build=", ".join(f"{name} {version(name)}" for name in ("torch", "hymotion-ray")),
        )

    @ray.method(num_returns=2)
    def run(self, row: pa.Table) -> tuple[pa.Table | None, Receipt]:
        """See `StageRunner.run`."""
        result, receipt = self._runner.run(row)
        return result, replace(receipt, peak_bytes=peak_bytes())

    @ray.method(concurrency_group="signs")
    def sign(self) -> Sign:
        """Answers while `run` is at work."""
        allocated, reserved = torch_memory()
        return Sign(beats=pulse.beats(), torch_allocated=allocated, torch_reserved=reserved)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A piece in the hands of a worker."""

    piece: Piece
    receipt: ray.ObjectRef
    result: ray.ObjectRef


@dataclass(eq=False)
class Worker:
    """A process of a pool as the driver sees it."""

    name: str
    actor: Any
    ready: ray.ObjectRef | None
    """The answer to `start`; None once it came."""
    num_gpus: float = 0.0
    """The share of a GPU that it was given."""
    group: Any = None
    """The placement group of it and the processes it leads; None where it leads none."""
    follower_gpus: float = 0.0
    """What these take of GPUs together."""
    hello: Hello | None = None
    tasks: deque[Assignment] = field(default_factory=deque)
    """What it holds, in the order it works; the first one is running."""
    sign: ray.ObjectRef | None = None
    """A sign of life asked for."""
    beats: int = -1
    last_sign: float = field(default_factory=time.monotonic)
    """When it last showed life."""
    head_since: float = 0.0
    """When its first task began."""
    pace: float | None = None
    """Seconds a chunk, of late."""
    num_finished: int = 0
    placed_at: float | None = None
    """When it was first known to have a place, where it then loads."""
    ready_at: float | None = None
    busy_s: float = 0.0
    """Seconds it had work at hand."""
    memory: tuple[int, int] = (0, 0)
    """Bytes allocated and reserved by torch."""

    def give(self, piece: Piece) -> ray.ObjectRef:
        """Hand it a piece; the reference to the receipt."""
        payload = piece.chunk.to_row() if piece.payload is None else piece.payload
        result, receipt = self.actor.run.remote(payload)
        if not self.tasks:
            self.head_since = self.last_sign = time.monotonic()
        self.tasks.append(Assignment(piece=piece, receipt=receipt, result=result))
        return receipt

    def take(self, receipt: ray.ObjectRef) -> Assignment:
        """Take back the assignment of a receipt that came; its successor runs now."""
        task = next(t for t in self.tasks if t.receipt == receipt)
        self.tasks.remove(task)
        now = time.monotonic()
        seconds = now - self.head_since
        self.pace = seconds if self.pace is None else 0.7 * self.pace + 0.3 * seconds
        self.head_since = self.last_sign = now
        self.busy_s += seconds
        self.num_finished += 1
        return task

    def is_loading(self, now: float, limit_s: float) -> bool:
        """Whether it has a place and sets up its stages, for no more than `limit_s`."""
        return self.hello is None and self.placed_at is not None and now - self.placed_at < limit_s

    def seconds_until_free(self, now: float) -> float:
        """When all it holds will be finished, as far as its pace tells; a late one is not told."""
        if not self.tasks or self.pace is None:
            return 0.0
        late = now - self.head_since - self.pace
        if late > 2 * self.pace + 1.0:
            return math.inf
        return max(0.0, -late) + self.pace * (len(self.tasks) - 1)
