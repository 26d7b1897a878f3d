"""Which GPUs the connected cluster has and how large, as NVML on each node says."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hymotion_ray.engine.nodes import Node

_ANSWER_S = 60.0


@dataclass(frozen=True)
class Card:
    """One GPU."""

    name: str
    """As its maker calls it: NVIDIA A100-SXM4-80GB."""
    num_bytes: int


def card_bytes(nodes: Sequence[Node]) -> list[int]:
    """Bytes of every GPU of the nodes that answer; empty where no node has NVML."""
    return [card.num_bytes for card in cards(nodes)]


def cards(nodes: Sequence[Node]) -> list[Card]:
    """Every GPU of the nodes that answer; empty where no node has NVML."""
    asked = [
        _read.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        ).remote()
        for node in nodes
        if node.num_gpus
    ]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S) if asked else ([], [])
    found: list[Card] = []
    for answer in ready:
        with contextlib.suppress(ray.exceptions.RayError):  # its node went away
            found += ray.get(answer)
    return found


@ray.remote(num_cpus=0, max_retries=0)
def _read() -> list[Card]:
    """Each GPU of this node; none without NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    found = []
    for handle in handles:
        name = pynvml.nvmlDeviceGetName(handle)
        name = name.decode() if isinstance(name, bytes) else str(name)
        found.append(Card(name, int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)))
    return found
