"""Where the processes of a render job go: how many, and what each takes of a node.

Every number follows the cluster as it is now: nodes that join get processes, those of nodes that
leave are not asked for again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hymotion_ray.config.render import ResourceConfig
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.device import SLOT
from hymotion_ray.engine.nodes import Node
from hymotion_ray.engine.render.shares import Shares

Size = Callable[[Sequence[Node]], tuple[int, int]]
"""Processes wanted on some nodes: at once, and at most when work queues up."""

_SAMPLERS_A_FINISHER = 4
"""Samplers on GPUs that one finishing process starts with; more come when work queues up."""
_ENCODER_SHARE = 0.25
"""Of a GPU, for a large text encoder, where nothing is known of the cards' memory."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Sizes of the pools and what a process of each takes."""

    uses_gpus: bool
    num_cpus: float
    """CPUs of every process: 1, less where the cluster is small."""
    encoder_is_large: bool
    """Whether a text encoder is too large for every sampler to hold one."""
    encoders: Size
    encoder_gpus: float
    samplers: Size
    group_size: int = 1
    """Processes of one sampler."""
    sampler_gpus: float
    """Of each process of a sampler."""
    sampler_resources: Mapping[str, float] = field(default_factory=dict)
    beside: tuple[int, float] | None = None
    """How many samplers share their GPU with an encoder, and the share that is theirs."""
    finishers: Size


def place(
    resources: ResourceConfig,
    cluster: ClusterInfo,
    nodes: Sequence[Node],
    *,
    encoder_is_large: bool,
    shares: Shares | None = None,
    sampler_bytes: float = 0.0,
    group_size: int = 1,
) -> Placement:
    """The job's own numbers where given, else what fits the cluster.

    With GPUs: one sampler a GPU, or as many as a node has `sampler_slot`s; a large encoder takes
    what `shares` says. Without: one sampler a CPU, as far as the nodes' memory goes at
    `sampler_bytes` each. A sampler is `group_size` processes, as far as possible of one node.
    """
    uses_gpus = wants_gpus(resources, cluster)
    encoder_gpus = resources.encoder_gpus
    if encoder_gpus is None:
        encoder_gpus = 0.0
        if uses_gpus and encoder_is_large:
            encoder_gpus = _ENCODER_SHARE if shares is None else shares.encoder_gpus
    taken = encoder_gpus if encoder_is_large else 0.0
    samplers, gpus, extra = _samplers(resources, cluster, nodes, taken, sampler_bytes, group_size)
    beside = None
    if uses_gpus and not extra and resources.sampler_gpus is None and 0 < taken < 1:
        beside = (resources.num_encoders, round(1 - taken, 4))

    def finishers(now: Sequence[Node]) -> tuple[int, int]:
        num_samplers = samplers(now)[0] * group_size
        plain = sum(n.num_cpus for n in now if not n.num_gpus)
        room = plain or sum(n.num_cpus for n in now) - num_samplers - resources.num_encoders
        least = max(1, math.ceil(num_samplers / _SAMPLERS_A_FINISHER))
        return least, max(least, int(room))

    num_processes = resources.num_encoders + samplers(nodes)[0] * group_size + 1
    return Placement(
        uses_gpus=uses_gpus,
        num_cpus=max(0.01, min(1.0, math.floor(100 * cluster.total_cpus / num_processes) / 100)),
        encoder_is_large=encoder_is_large,
        encoders=lambda now: (resources.num_encoders, resources.num_encoders),
        encoder_gpus=encoder_gpus,
        samplers=samplers,
        group_size=group_size,
        sampler_gpus=gpus,
        sampler_resources=extra,
        beside=beside,
        finishers=finishers,
    )


def plain_processes(resources: ResourceConfig, cluster: ClusterInfo) -> Size:
    """One process a CPU, on nodes without GPUs where there are some."""
    hidden = cluster.total_cpus - cluster.num_cpus

    def per_cpu(now: Sequence[Node]) -> tuple[int, int]:
        plain = sum(n.num_cpus for n in now if not n.num_gpus)
        number = max(1, int((plain or sum(n.num_cpus for n in now)) - hidden))
        if resources.num_samplers is not None:
            number = min(number, resources.num_samplers)
        return number, number

    return per_cpu


def wants_gpus(resources: ResourceConfig, cluster: ClusterInfo) -> bool:
    """Whether samplers run on GPUs: the cluster has some, or the job asks for nodes that do."""
    if resources.sampler_gpus is not None:
        return resources.sampler_gpus > 0
    return cluster.num_gpus > 0


def _samplers(
    resources: ResourceConfig,
    cluster: ClusterInfo,
    nodes: Sequence[Node],
    encoder_gpus: float,
    sampler_bytes: float,
    group_size: int,
) -> tuple[Size, float, dict[str, float]]:
    """Number of samplers, GPU share of each, and what else each takes.

    A sampler beside an encoder takes what that leaves (`Placement.beside`), the others whole GPUs:
    equal small shares would be packed onto few GPUs.
    """

    def groups(places: Sequence[float]) -> int:
        """How many samplers fit nodes with room for so many processes each."""
        whole = sum(int(room // group_size) for room in places)
        return max(1, whole or int(sum(places) // group_size))

    if resources.num_samplers is not None:
        number = resources.num_samplers
        size: Size | None = lambda now: (number, number)  # noqa: E731
    else:
        size = None
    if not wants_gpus(resources, cluster):
        hidden = cluster.total_cpus - cluster.num_cpus

        def per_cpu(now: Sequence[Node]) -> tuple[int, int]:
            number = max(1, int(sum(n.num_cpus for n in now) - hidden))
            rooms = [n.resources["memory"] for n in now if "memory" in n.resources]
            if sampler_bytes and len(rooms) == len(now):
                number = max(1, min(number, sum(int(room // sampler_bytes) for room in rooms)))
            number = groups([number])
            return number, number

        return size or per_cpu, 0.0, {}
    shares = [n.num_gpus / n.resources[SLOT] for n in nodes if n.num_gpus and n.resources.get(SLOT)]
    if shares and resources.sampler_gpus is None:
        # One shape for all, so that a process fits any node; the cap goes by the node's own slots.
        # Slots count the samplers; the share only gives access to a GPU, and leaves the encoder's.
        least = min(1.0 - encoder_gpus % 1, math.floor(1e4 * min(shares)) / 1e4)

        def per_slot(now: Sequence[Node]) -> tuple[int, int]:
            number = groups([n.resources.get(SLOT, 0.0) for n in now])
            return number, number

        return size or per_slot, least, {SLOT: 1.0}
    share = resources.sampler_gpus
    if share is None:
        share = 1.0
    taken, own_cards = share, resources.num_encoders if encoder_gpus == 1 else 0

    def per_gpu(now: Sequence[Node]) -> tuple[int, int]:
        a_card = math.floor(1 / taken + 1e-6)
        places = [n.num_gpus * a_card for n in now if n.num_gpus]
        if places:
            places[places.index(max(places))] -= own_cards * a_card
        number = groups(places)
        return number, number

    return size or per_gpu, share, {}
