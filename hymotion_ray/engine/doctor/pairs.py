"""Every node against every other: ports with their direction, bandwidth, storage, an all-reduce.

Drives the examiners of a cluster; judges by `findings.py` where more than a yes is asked.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from hymotion_ray.config.doctor import DoctorConfig
from hymotion_ray.engine.doctor.examiner import Target
from hymotion_ray.engine.doctor.findings import Finding, Level, judge_bandwidth

_MAX_ROUNDS = 8
"""Rounds of transfers: up to nine nodes every pair is measured, of more some pairs of each."""
_LEVELS: dict[str, Level] = {"metrics": "warning"}
_ADVICE = "open it in the firewall or NetworkPolicy, in that direction"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A node with its examiner."""

    name: str
    ip: str
    ports: Mapping[str, int]
    """Ports that Ray listens at, by what they are for."""
    actor: Any


def check_ports(nodes: Sequence[Examined], config: DoctorConfig) -> Iterator[Finding]:
    """Each port of each node from each other node; a blocked one is named with its direction."""
    listening = ray.get([n.actor.listen.remote(config.ports) for n in nodes])
    targets: dict[str, list[Target]] = {
        node.name: [
            *((node.ip, port, name) for name, port in node.ports.items()),
            (node.ip, open_port, "torch"),
            *((node.ip, port, f"port {port}") for port in config.ports),
        ]
        for node, open_port in zip(nodes, listening, strict=True)
    }
    asked = {
        a.name: [(b.name, target) for b in nodes if b.name != a.name for target in targets[b.name]]
        for a in nodes
    }
    answers = ray.get([a.actor.reach.remote([t for _, t in asked[a.name]]) for a in nodes])
    blocked: dict[tuple[str, str, str], tuple[int, str]] = {}
    for a, reasons in zip(nodes, answers, strict=True):
        for (b, (_, port, what)), reason in zip(asked[a.name], reasons, strict=True):
            if reason is not None:
                blocked[a.name, b, what] = (port, reason)
    for (a_name, b_name, what), (port, reason) in blocked.items():
        both = (b_name, a_name, what) in blocked
        other = "nor the other way" if both else "the other way is open"
        yield Finding(
            node=f"{a_name} -> {b_name}",
            check="ports",
            level=_LEVELS.get(what, "failure"),
            found=f"{what} ({port}) cannot be reached: {reason}; {other}",
            advice=_ADVICE,
        )
    if not blocked and len(nodes) > 1:
        num = sum(map(len, asked.values()))
        yield Finding(
            node="cluster", check="ports", level="ok", found=f"{num} connections, both directions"
        )


def check_bandwidth(nodes: Sequence[Examined], config: DoctorConfig) -> Iterator[Finding]:
    """Gbit/s between pairs, each node in one transfer at a time."""
    if not config.transfer_mb or len(nodes) < 2:
        return
    ports = dict(
        zip(
            (n.name for n in nodes),
            ray.get([n.actor.listen.remote(()) for n in nodes]),
            strict=True,
        )
    )
    rates: dict[tuple[str, str], float] = {}
    for pairs in rounds(nodes):
        num_bytes = int(config.transfer_mb * 1e6)
        sent = ray.get([a.actor.send.remote(b.ip, ports[b.name], num_bytes) for a, b in pairs])
        for (a, b), rate in zip(pairs, sent, strict=True):
            if isinstance(rate, str):
                yield Finding(
                    node=f"{a.name} -> {b.name}",
                    check="bandwidth",
                    level="failure",
                    found=f"a transfer of {config.transfer_mb:g} MB broke: {rate}",
                    advice="look at the link, its MTU and firewalls that cut long connections",
                )
            else:
                rates[a.name, b.name] = rate
    yield from judge_bandwidth(rates, config.grades)


def rounds(nodes: Sequence[Examined]) -> Iterator[list[tuple[Examined, Examined]]]:
    """Pairs in rounds in which no node is twice: the circle method of tournaments."""
    circle: list[Examined | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    for _ in range(min(len(circle) - 1, _MAX_ROUNDS)):
        half = len(circle) // 2
        meeting = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(a, b) for a, b in meeting if a is not None and b is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def check_storage(nodes: Sequence[Examined], config: DoctorConfig) -> Iterator[Finding]:
    """Each node reads what each other has written, and again after it was written over."""
    for place in (*config.shares, *config.stores):
        check = "store" if "://" in place else "share"
        yield from _check_place(nodes, place, check)


def _check_place(nodes: Sequence[Examined], place: str, check: str) -> Iterator[Finding]:
    token = secrets.token_hex(6)
    names = {node.name: f".hymotion-doctor-{token}-{k}" for k, node in enumerate(nodes)}
    wrong: dict[str, list[str]] = {}
    try:
        for text in (f"{token} first", f"{token} then"):
            written = ray.get([n.actor.write.remote(place, names[n.name], text) for n in nodes])
            for node, problem in zip(nodes, written, strict=True):
                if problem:
                    wrong.setdefault(node.name, []).append(f"cannot write: {problem}")
            whole = [n.name for n, problem in zip(nodes, written, strict=True) if not problem]
            read = [n.actor.read.remote(place, [names[w] for w in whole], text) for n in nodes]
            for node, problems in zip(nodes, ray.get(read), strict=True):
                for writer, problem in zip(whole, problems, strict=True):
                    if problem and node.name not in wrong:
                        words = f"what {writer} wrote {problem}"
                        wrong.setdefault(node.name, []).append(words)
            if wrong:
                break
    finally:
        ray.get([n.actor.remove.remote(place, names[n.name]) for n in nodes])
    alone = _outsiders(wrong, len(nodes))
    for name in alone:
        yield Finding(
            node=name,
            check=check,
            level="failure",
            found=f"{place}: {wrong[name][0]}",
            advice=f"mount the same {place} on this node, without caching of attributes"
            if check == "share"
            else "check this node's credentials, endpoint and way to the store",
        )
    if not wrong:
        yield Finding(
            node="cluster",
            check=check,
            level="ok",
            found=f"{place}: every node reads what every other wrote",
        )


def _outsiders(wrong: Mapping[str, Sequence[str]], num_nodes: int) -> list[str]:
    """Whom to name: a single node apart makes all others miss its file, and misses all of theirs.

    Every node then has a complaint; those of the most complained-of node count, if there is one.
    """
    if len(wrong) < num_nodes:
        return list(wrong)
    blamed = {
        name: sum(f"what {name} wrote" in words for said in wrong.values() for words in said)
        for name in wrong
    }
    most = max(blamed.values())
    worst = [name for name, count in blamed.items() if count == most]
    return worst if most > 0 and len(worst) == 1 else list(wrong)


def check_all_reduce(
    nodes: Sequence[Examined], config: DoctorConfig, backend: str = "gloo"
) -> Iterator[Finding]:
    """One group over all nodes, a sum whose result is known; whoever spoils it is named."""
    if len(nodes) < 2:
        return
    ray.wait([n.actor.prepare.remote() for n in nodes], num_returns=len(nodes), timeout=120)
    master = (nodes[0].ip, ray.get(nodes[0].actor.free_port.remote()))
    limit = config.collective_timeout_s
    futures = [
        node.actor.all_reduce.remote(backend, master, rank, len(nodes), limit)
        for rank, node in enumerate(nodes)
    ]
    ray.wait(futures, num_returns=len(futures), timeout=4 * limit + 10)
    answers: list[tuple[list[int], str | None]] = []
    for future in futures:
        try:
            answers.append(ray.get(future, timeout=0))
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayError) as error:
            answers.append(([], f"no answer ({type(error).__name__})"))
    said = spoilers(answers, limit)
    if not said:
        yield Finding(
            node="cluster",
            check="all_reduce",
            level="ok",
            found=f"{backend} over {len(nodes)} processes, the sum is right",
        )
    for rank, problem in said.items():
        way = f"its way to {nodes[0].name}" if rank else f"the others' way to its port {master[1]}"
        yield Finding(
            node=nodes[rank].name,
            check="all_reduce",
            level="failure",
            found=f"{backend}: {problem}",
            advice=f"look at its log and at {way}, where all meet",
        )


def spoilers(answers: Sequence[tuple[Sequence[int], str | None]], limit_s: float) -> dict[int, str]:
    """Ranks that spoil a group and how, from each rank's answer: whom it missed, what went wrong.

    Rank 0 keeps the store that all meet at. Who does not find it misses rank 0; but rank 0 was
    there if it missed somebody itself.
    """
    said: dict[int, str] = {}
    for rank, (missing, problem) in enumerate(answers):
        if problem:
            said.setdefault(rank, problem)
        for absent in missing:
            if absent or not answers[0][0]:
                said[absent] = f"did not come to the group within {limit_s:g} s"
    return said
