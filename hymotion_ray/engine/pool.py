"""Pools of like worker processes: where they go and how many there are.

A `Step` says which stages a process runs and what it asks of a node. A `Pool` keeps as many such
processes as the cluster has room for, in the cluster as it is now: nodes come and go. It decides
nothing about chunks; `dispatch.py` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from hymotion_ray.engine import faults
from hymotion_ray.engine.nodes import Node
from hymotion_ray.engine.stage import Stage
from hymotion_ray.engine.worker import StageWorker, Worker

MAX_SETUP_PAUSE_S = 60.0
_START_AGAIN_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """A pool of like processes, and the stages that each of them runs on a chunk."""

    name: str
    stages: tuple[Stage, ...]
    size: Callable[[Sequence[Node]], tuple[int, int]]
    """Processes that these nodes shall have: so many at once, and so many when work queues up."""
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    beside: tuple[int, float] | None = None
    """How many processes take another share of a GPU than `num_gpus`, and that share."""
    num_followers: int = 0
    """Processes that each process starts and leads: they take as much, all in one placement group,
    whose bundle 0 is the leader's."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Further resources that a process takes."""
    avoids_gpu_nodes: bool = False
    """Whether a process must not sit on a node with GPUs where there are others."""
    depth: int = 2
    """Chunks a process holds at most, so that the next one is there when the running one ends."""


@dataclass
class PoolUse:
    """How the workers of a pool that have ended were used."""

    ready_s: float = 0.0
    """Seconds that they were ready, added up."""
    busy_s: float = 0.0
    """Seconds that they had work at hand."""
    gpu_s: dict[str, float] = field(default_factory=dict)
    """Seconds times share of a GPU, by kind."""
    peak_bytes: int = 0
    """Memory of the fullest process (`peak.py`); those that have not ended count too."""

    def add(self, worker: Worker) -> None:
        """Count a worker that ends."""
        if worker.hello is not None and worker.ready_at is not None:
            seconds = time.monotonic() - worker.ready_at
            self.ready_s += seconds
            self.busy_s += worker.busy_s
            if worker.hello.gpu_share:
                kind = worker.hello.kind
                share = seconds * (worker.hello.gpu_share + worker.follower_gpus)
                self.gpu_s[kind] = self.gpu_s.get(kind, 0.0) + share


class Pool:
    """The workers of one step."""

    def __init__(self, step: Step, *, is_last: bool) -> None:
        self.step = step
        self.workers: list[Worker] = []
        self.failed_setups = 0
        """Set-ups that failed since the last one that did not."""
        self.use = PoolUse()
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
        step, num_gpus = self.step, self.next_share()
        self._num_started += 1
        name = f"{step.name}-{self._num_started}"
        group = self._reserve(num_gpus) if step.num_followers else None
        actor = StageWorker.options(  # type: ignore[attr-defined]
            num_cpus=step.num_cpus,
            num_gpus=num_gpus or None,
            resources=dict(step.resources) or None,
            scheduling_strategy=self._place(nodes)
            if group is None
            else PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        ).remote(name, step.stages, self._is_last, faults.folder())
        worker = Worker(
            name=name,
            actor=actor,
            ready=actor.start.remote(),
            num_gpus=num_gpus,
            group=group,
            follower_gpus=step.num_followers * step.num_gpus,
        )
        self.workers.append(worker)
        return worker

    def _reserve(self, leader_gpus: float) -> Any:
        """Places for a leader and its followers, side by side as far as nodes have room.

        All or none of them are taken, so that two groups never wait for each other's.
        """
        step = self.step
        others = {"CPU": step.num_cpus, "GPU": step.num_gpus, **step.resources}
        bundles = [{**others, "GPU": leader_gpus}, *[others] * step.num_followers]
        return placement_group(
            [{name: amount for name, amount in one.items() if amount} for one in bundles],
            strategy="PACK",
        )

    def next_share(self) -> float:
        """The share of a GPU that the next worker takes."""
        if self.step.beside is None:
            return self.step.num_gpus
        number, share = self.step.beside
        held = sum(worker.num_gpus == share for worker in self.workers)
        return share if held < number else self.step.num_gpus

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

    def start_again(self, worker: Worker) -> None:
        """End a worker whose place went away before it could start; another one comes soon."""
        self.end(worker)
        self._not_before = time.monotonic() + _START_AGAIN_S

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
            self.use.add(worker)
        ray.kill(worker.actor)
        if worker.group is not None:
            remove_placement_group(worker.group)


def busy_shares(pools: Sequence[Pool]) -> dict[str, float]:
    """Of each step, the share of time that its processes had work at hand; after the end."""
    used = [(pool.step.name, pool.use) for pool in pools if pool.use.ready_s]
    return {name: use.busy_s / use.ready_s for name, use in used}


def gpu_seconds(pools: Sequence[Pool]) -> dict[str, float]:
    """Seconds times shares of GPUs, by kind; after the end."""
    total: dict[str, float] = {}
    for pool in pools:
        for kind, seconds in pool.use.gpu_s.items():
            total[kind] = total.get(kind, 0.0) + seconds
    return total
