"""How much memory the GPUs of the connected cluster have, as NVML on each node says."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hymotion_ray.engine.nodes import Node

_ANSWER_S = 60.0


def card_bytes(nodes: Sequence[Node]) -> list[int]:
    """Bytes of every GPU of the nodes that answer; empty where no node has NVML."""
    asked = [
        _read.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        ).remote()
        for node in nodes
        if node.num_gpus
    ]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S) if asked else ([], [])
    found: list[int] = []
    for answer in ready:
        with contextlib.suppress(ray.exceptions.RayError):  # its node went away
            found += ray.get(answer)
    return found


@ray.remote(num_cpus=0, max_retries=0)
def _read() -> list[int]:
    """Bytes of each GPU of this node; empty without NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return [int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles]
