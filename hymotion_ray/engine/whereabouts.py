"""Where the work of a run stands, in words, for whoever wonders why nothing moves."""

from __future__ import annotations

from collections.abc import Sequence, Sized

import ray.exceptions

from hymotion_ray.engine.nodes import Node
from hymotion_ray.engine.pool import Pool, Step

_MAX_NODES = 20


def where(pools: Sequence[Pool], queues: Sequence[Sized], nodes: Sequence[Node]) -> str:
    """What each step holds, what waits for it, and what the nodes have."""
    words = []
    for pool, queue in zip(pools, queues, strict=True):
        step, num_held = pool.step, sum(len(w.tasks) for w in pool.workers)
        if len(queue) and not pool.ready:
            words.append(
                f"{len(queue)} chunks wait for a {step.name} process; {len(pool.workers)} are"
                f" loading or find no place ({_asks(step)} each)"
            )
        elif len(queue) or num_held:
            words.append(f"{step.name} holds {num_held} chunks, {len(queue)} wait for it")
    has = ", ".join(f"{n.num_cpus:g} CPUs and {n.num_gpus:g} GPUs" for n in nodes[:_MAX_NODES])
    return f"{'; '.join(words) or 'no chunk is under way'}; the nodes have {has or 'nothing'}"


def _asks(step: Step) -> str:
    asked = {"CPU": step.num_cpus, "GPU": step.num_gpus, **step.resources}
    return ", ".join(f"{amount:g} {name}" for name, amount in asked.items() if amount)


def never_ran(error: BaseException) -> bool:
    """Whether a process ended before its first line of ours: its place went away, not its fault."""
    words = ("never ran", "not schedulable", "node has died", "node was terminated", "node failure")
    return isinstance(error, ray.exceptions.RayError) and any(w in str(error) for w in words)


def short(error: BaseException) -> str:
    """An error's kind and the last line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
