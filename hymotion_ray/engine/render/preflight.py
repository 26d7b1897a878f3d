"""Whether the nodes have the memory that a job will take, before a process is killed for it.

Ray-free: numbers of weights in, an error with advice out. A machine that runs out of memory kills
processes without a word, hours into a job or while the model loads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hymotion_ray.engine.nodes import Node
from hymotion_ray.engine.render.placement import Placement
from hymotion_ray.errors import ClusterError

_GIB = 2**30
_PROCESS_BYTES = _GIB // 2
"""Of a process with torch, its libraries and its buffers."""
_ON_CPU_BYTES = 4
"""A weight on CPU is float32."""


def sampler_bytes(network_weights: int) -> int:
    """Memory of a sampler process on CPU."""
    return _ON_CPU_BYTES * network_weights + _PROCESS_BYTES


def require_memory(
    placement: Placement, nodes: Sequence[Node], *, encoder_weights: int, network_weights: int
) -> None:
    """Raise `ClusterError` when processes on CPUs will not fit the nodes' memory, or a sampler that
    is split over GPUs will not fit these.

    Nodes say what they have as Ray's resource `memory`; those that do not are taken at their word.
    """
    _require_gpus(placement, nodes)
    rooms = [node.resources["memory"] for node in nodes if "memory" in node.resources]
    if not rooms or len(rooms) < len(nodes):
        return
    on_cpu = placement.encoder_is_large and not placement.encoder_gpus
    encoder = on_cpu * (_ON_CPU_BYTES * encoder_weights + _PROCESS_BYTES)
    if encoder > max(rooms):
        raise ClusterError(
            f"the text encoder takes {_words(encoder)} of memory on CPU, and the largest node has"
            f" {_words(max(rooms))} free; use a node with a GPU or more memory, or a model with a"
            " small encoder, such as tiny"
        )
    if placement.uses_gpus:
        return
    sampler = sampler_bytes(network_weights)
    wanted = placement.samplers(nodes)[0] * placement.group_size
    fitting = sum(int(room // sampler) for room in rooms) - math.ceil(encoder / sampler)
    if fitting < wanted:
        advice = f"pass --samplers {fitting}" if fitting > 0 else "use a larger node, or a GPU"
        raise ClusterError(
            f"{wanted} samplers take {_words(sampler)} of memory each on CPU"
            f"{' beside the text encoder' if encoder else ''}, and the nodes have"
            f" {_words(sum(rooms))} free; {advice}"
        )


def _require_gpus(placement: Placement, nodes: Sequence[Node]) -> None:
    """A group of processes finds its GPUs beside an encoder that has one to itself."""
    there = sum(node.num_gpus for node in nodes)
    own = placement.encoder_gpus if placement.encoder_gpus == 1 else 0.0
    wanted = placement.group_size * placement.sampler_gpus
    if placement.group_size > 1 and 0 < there < wanted + own:
        beside = " beside the text encoder, which has one to itself" if own else ""
        raise ClusterError(
            f"a sampler split over {placement.group_size} processes takes {wanted:g} GPUs{beside},"
            f" and the nodes have {there:g}; split it over fewer, or add GPUs"
        )


def _words(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.1f} GiB"
