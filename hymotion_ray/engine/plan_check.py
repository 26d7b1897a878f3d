"""Whether the connected cluster has the cards of a plan, and what its own cards cost an hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hymotion_ray.engine.cards import Card
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.errors import ClusterError
from hymotion_ray.planning.carried import PlanFile
from hymotion_ray.planning.catalogue import Catalogue, load_catalogue

_PROCESSES_S = 4.4
"""Until a sampler of `tiny` is ready, from where the job begins: measured on 2 CPU cores."""
_LOADED_A_S = 1.7e9
"""Bytes of weights a second: what is left of the 15.6 s that a render of 4,000 clips took more than
its clips on an H200 (benchmarks' README: 15.9 and 15.0 clips/s), over 9.3 B numbers of 16 bits.
Files were in the host's memory; from a disk of half that rate it takes twice as long."""


def start_seconds(num_weights: int) -> float:
    """Until a render begins with its clips: processes, then weights of so many numbers."""
    return _PROCESSES_S + 2 * num_weights / _LOADED_A_S


def require_cluster(plan: PlanFile, cluster: ClusterInfo, cards: Sequence[Card]) -> None:
    """Raise `ClusterError` where the cluster lacks what the plan needs.

    Where no node tells its cards' names, their number counts.
    """
    if cards or not cluster.num_gpus:
        plan.require_pool(pool_of(cards, load_catalogue()))
        return
    wanted = sum(plan.gpus.values())
    if cluster.num_gpus < wanted:
        raise ClusterError(
            f"{plan.path} needs {wanted} GPUs and the cluster has {cluster.num_gpus:g}; wait for "
            "the other nodes, or plan again for what there is"
        )


def pool_of(cards: Sequence[Card], catalogue: Catalogue) -> dict[str, int]:
    """Cards by the catalogue's names, unknown ones by their own."""
    found: Counter[str] = Counter()
    for card in cards:
        kind = catalogue.kind_of(card.name, card.num_bytes)
        found[kind.name if kind else card.name] += 1
    return dict(found)


def usd_per_hour(
    cards: Sequence[Card], catalogue: Catalogue, own: Mapping[str, float]
) -> float | None:
    """Of all cards, at `own` prices by a part of their names, else the catalogue's.

    None where a card has neither.
    """
    total = 0.0
    for card in cards:
        fitting = [word for word in own if word.lower() in card.name.lower()]
        kind = catalogue.kind_of(card.name, card.num_bytes)
        machines = catalogue.machines_with(kind.name) if kind else []
        if fitting:
            total += own[max(fitting, key=len)]
        elif machines:
            total += machines[0].usd_per_hour / machines[0].num_gpus
        else:
            return None
    return total
