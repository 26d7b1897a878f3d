"""Whether the processes of a job pull together: who lags, which step the others wait for. Ray-free.

Works on what `pool.py` counts; says it in words for the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Protocol

_LAGS_AT = 1.5
_FEWEST_PEERS = 3
_FEWEST_CHUNKS = 3
_IDLE_AT = 0.2


class Paced(Protocol):
    """A process, as far as its pace goes."""

    name: str
    pace: float | None
    num_finished: int


def laggards(workers: Sequence[tuple[str, Paced]]) -> list[str]:
    """Sentences on processes that are much slower than their like.

    `workers` are pairs of kind (step and device) and process; a kind needs three that have done a
    few chunks each.
    """
    kinds: dict[str, list[Paced]] = {}
    for kind, worker in workers:
        if worker.pace is not None and worker.num_finished >= _FEWEST_CHUNKS:
            kinds.setdefault(kind, []).append(worker)
    words = []
    for kind, peers in kinds.items():
        if len(peers) < _FEWEST_PEERS:
            continue
        usual = median(w.pace for w in peers if w.pace is not None)
        words += [
            f"{w.name} takes {w.pace / usual:.1f} times as long a chunk as the others on {kind}"
            for w in peers
            if w.pace is not None and usual > 0 and w.pace > _LAGS_AT * usual
        ]
    return words


def waiting_words(busy: Mapping[str, float]) -> str | None:
    """A sentence when GPU processes waited much for another step; None when all is well.

    `busy` is the busy share of each step's processes, in the order of the steps; `sample` counts.
    """
    idle = 1.0 - busy.get("sample", 1.0)
    others = {name: share for name, share in busy.items() if name != "sample"}
    if idle < _IDLE_AT or not others:
        return None
    slowest = max(others, key=lambda name: others[name])
    return (
        f"samplers waited {100 * idle:.0f} % of their time; the {slowest} step was busy"
        f" {100 * others[slowest]:.0f} % of its own: give it more processes"
    )


def cost(gpu_seconds: Mapping[str, float], prices: Mapping[str, float]) -> float | None:
    """Price of the GPU time, where a price is known for every kind used; None elsewhere.

    `prices` an hour are looked up by a word of the kind's name, the longest that fits: `A100` for
    `NVIDIA A100-SXM4-80GB`.
    """
    total = 0.0
    for kind, seconds in gpu_seconds.items():
        fitting = [word for word in prices if word.lower() in kind.lower()]
        if not fitting:
            return None
        total += seconds / 3600 * prices[max(fitting, key=len)]
    return total if gpu_seconds else None
