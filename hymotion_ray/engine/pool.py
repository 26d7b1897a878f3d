"""Pools of like worker processes: where they go, how many there are, and what each is doing.

A `Step` says which stages a process runs and what it asks of a node. A `Pool` keeps as many such
processes as the cluster has room for, in the cluster as it is now: nodes come and go. It decides
nothing about chunks; `dispatch.py` does.

Workers are actors without restarts of Ray's own: a restarted actor would hold back the calls that
were meant for the dead one until a place is found for it, while here they go to its mates at once.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hymotion_ray.engine import faults, pulse
from hymotion_ray.engine.device import (
    cap_gpu_memory,
    device_name,
    device_of_this_process,
    set_threads,
    torch_memory,
)
from hymotion_ray.engine.nodes import Node
from hymotion_ray.engine.piece import Piece
from hymotion_ray.engine.runner import Receipt, StageRunner
from hymotion_ray.engine.stage import Stage

MAX_SETUP_PAUSE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """A pool of like processes, and the stages that each of them runs on a chunk."""

    name: str
    stages: tuple[Stage, ...]
    size: Callable[[Sequence[Node]], tuple[int, int]]
    """Processes that these nodes shall have: so many at once, and so many when work queues up."""
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    """Further resources that a process takes."""
    avoids_gpu_nodes: bool = False
    """Whether a process must not sit on a node with GPUs where there are others."""
    depth: int = 2
    """Chunks a process holds at most, so that the next one is there when the running one ends."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a process says when its stages are set up."""

    node_id: str
    pid: int
    gpus: tuple[str, ...]
    """GPUs of the node that this process may use, as Ray numbers them."""
    kind: str
    """GPU or processor model."""


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
            kind=device_name(device_of_this_process()),
        )

    @ray.method(num_returns=2)
    def run(self, row: pa.Table) -> tuple[pa.Table | None, Receipt]:
        """See `StageRunner.run`."""
        return self._runner.run(row)

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
        self.num_finished += 1
        return task

    def seconds_until_free(self, now: float) -> float:
        """When all it holds will be finished, as far as its pace tells; a late one is not told."""
        if not self.tasks or self.pace is None:
            return 0.0
        late = now - self.head_since - self.pace
        if late > 2 * self.pace + 1.0:
            return math.inf
        return max(0.0, -late) + self.pace * (len(self.tasks) - 1)


class Pool:
    """The workers of one step."""

    def __init__(self, step: Step, *, is_last: bool) -> None:
        self.step = step
        self.workers: list[Worker] = []
        self.failed_setups = 0
        """Set-ups that failed since the last one that did not."""
        self._is_last = is_last
        self._not_before = 0.0
        self._num_started = 0

    @property
    def ready(self) -> list[Worker]:
        """Workers that can be given work."""
        return [w for w in self.workers if w.hello is not None]

    def staff(self, nodes: Sequence[Node], backlog: int) -> list[Worker]:
        """Start the workers that are missing, end those that wait in vain; the new ones."""
        least, most = self.step.size(nodes)
        wanted = least
        if backlog >= 2 * max(1, len(self.workers)):
            wanted = min(most, max(least, len(self.workers) + 1))
        started = []
        if time.monotonic() >= self._not_before:
            while len(self.workers) < wanted:
                started.append(self._start(nodes))
        for worker in [w for w in self.workers if w.hello is None][::-1]:
            if len(self.workers) > max(wanted, most):
                self.end(worker)
        return started

    def _start(self, nodes: Sequence[Node]) -> Worker:
        step = self.step
        self._num_started += 1
        name = f"{step.name}-{self._num_started}"
        actor = StageWorker.options(  # type: ignore[attr-defined]
            num_cpus=step.num_cpus,
            num_gpus=step.num_gpus or None,
            resources=dict(step.resources) or None,
            scheduling_strategy=self._place(nodes),
        ).remote(name, step.stages, self._is_last, faults.folder())
        worker = Worker(name=name, actor=actor, ready=actor.start.remote())
        self.workers.append(worker)
        return worker

    def _place(self, nodes: Sequence[Node]) -> Any:
        """A node without GPUs where the step asks for one and there is one, else Ray's choice."""
        plain = [n for n in nodes if not n.num_gpus and n.num_cpus >= self.step.num_cpus]
        if not self.step.avoids_gpu_nodes or len(plain) in (0, len(nodes)):
            return "DEFAULT"
        on = {n.node_id: 0 for n in plain}
        for worker in self.workers:
            if worker.hello is not None and worker.hello.node_id in on:
                on[worker.hello.node_id] += 1
        roomiest = min(plain, key=lambda n: (on[n.node_id] - n.num_cpus, n.node_id))
        return NodeAffinitySchedulingStrategy(roomiest.node_id, soft=False)

    def setup_failed(self, worker: Worker) -> None:
        """End a worker whose set-up failed; the next one starts after a growing pause."""
        self.end(worker)
        self.failed_setups += 1
        pause = min(MAX_SETUP_PAUSE_S, 2.0**self.failed_setups)
        self._not_before = time.monotonic() + pause

    def end(self, worker: Worker) -> None:
        """End a worker, whatever it is doing."""
        if worker in self.workers:
            self.workers.remove(worker)
        ray.kill(worker.actor)
