"""A check of a cluster from its config to its report, and the quick form that jobs run at start."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hymotion_ray.config.doctor import DoctorConfig, Grades
from hymotion_ray.engine.cluster import connect
from hymotion_ray.engine.doctor.examiner import Examiner
from hymotion_ray.engine.doctor.facts import NodeFacts, versions
from hymotion_ray.engine.doctor.findings import Finding, judge_clock, judge_nodes
from hymotion_ray.engine.doctor.pairs import (
    Examined,
    check_all_reduce,
    check_bandwidth,
    check_ports,
    check_storage,
)
from hymotion_ray.engine.doctor.report import DoctorReport

_CLOCK_TRIES = 3
_HEAD = "node:__internal_head__"

Say = Callable[[str], None]


def run_doctor(config: DoctorConfig, say: Say) -> DoctorReport:
    """Check the cluster that `config` names. `say` takes lines for the user.

    Raises `ClusterError` when the cluster cannot be reached; whatever is wrong with a node is a
    finding.
    """
    start = time.monotonic()
    with connect(config.address):
        report = DoctorReport(num_nodes=len(_alive()))
        with _examiners(config, report.findings) as nodes:
            report.findings += examine(nodes, config, say)
            if not config.quick:
                with _gpu_workers(config.timeout_s, report.findings) as workers:
                    report.findings += check_all_reduce(workers, config, "nccl")
    report.seconds = time.monotonic() - start
    return report


def examine(nodes: Sequence[Examined], config: DoctorConfig, say: Say) -> list[Finding]:
    """What each node says of itself and, unless `config` is quick, what passes between them."""
    findings: list[Finding] = []
    _look(nodes, config.grades, config.timeout_s, findings)
    if not config.quick:
        for check in (check_ports, check_storage, check_bandwidth, check_all_reduce):
            say(f"{check.__name__.removeprefix('check_')} of {len(nodes)} nodes")
            findings += check(nodes, config)
    return findings


def quick_check(grades: Grades | None = None, timeout_s: float = 60.0) -> list[Finding]:
    """What is wrong with the nodes of the connected cluster, by what each says of itself.

    For jobs, before they start: versions, GPUs, memory, shm, disk, clocks; a node that has not
    answered after `timeout_s` in all is a finding too. Nothing wrong: empty.
    """
    config = DoctorConfig(quick=True, timeout_s=timeout_s, grades=grades or Grades())
    deadline = time.monotonic() + timeout_s
    findings: list[Finding] = []
    with _examiners(config, findings) as nodes:
        left_s = max(1.0, deadline - time.monotonic())
        findings += examine(nodes, dataclasses.replace(config, timeout_s=left_s), lambda line: None)
    return [finding for finding in findings if finding.level != "ok"]


def _alive() -> list[dict[str, Any]]:
    return sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: str(n["NodeID"]))


@contextlib.contextmanager
def _examiners(config: DoctorConfig, findings: list[Finding]) -> Iterator[list[Examined]]:
    """An examiner on each node that can start one in time; the others are failures."""
    nodes = []
    for node, name in zip(_alive(), _names(), strict=True):
        pinned = NodeAffinitySchedulingStrategy(node_id=str(node["NodeID"]), soft=False)
        actor = (
            ray.remote(Examiner)
            .options(num_cpus=0, scheduling_strategy=pinned, max_concurrency=4)
            .remote(str(node["NodeManagerAddress"]))
        )
        ports = {
            what: int(str(node[key]))
            for what, key in (
                ("node manager", "NodeManagerPort"),
                ("object manager", "ObjectManagerPort"),
                ("metrics", "MetricsExportPort"),
            )
            if node.get(key)
        }
        if _HEAD in dict(node["Resources"]):
            ports["gcs"] = int(ray.get_runtime_context().gcs_address.rpartition(":")[2])
        ip = str(node["NodeManagerAddress"])
        nodes.append(Examined(name=name, ip=ip, ports=ports, actor=actor))
    try:
        yield _answering(nodes, config.timeout_s, findings)
    finally:
        for examined in nodes:
            ray.kill(examined.actor)


@contextlib.contextmanager
def _gpu_workers(timeout_s: float, findings: list[Finding]) -> Iterator[list[Examined]]:
    """One worker a GPU, for an all-reduce through NCCL; none where no GPU is, or one is busy."""
    workers = []
    for node, name in zip(_alive(), _names(), strict=True):
        pinned = NodeAffinitySchedulingStrategy(node_id=str(node["NodeID"]), soft=False)
        for index in range(int(node["Resources"].get("GPU", 0))):
            ip = str(node["NodeManagerAddress"])
            actor = (
                ray.remote(Examiner)
                .options(num_cpus=0, num_gpus=1, scheduling_strategy=pinned)
                .remote(ip)
            )
            workers.append(Examined(name=f"{name} GPU {index}", ip=ip, ports={}, actor=actor))
    try:
        waiting = [worker.actor.clock.remote() for worker in workers]
        free = ray.wait(waiting, num_returns=len(waiting), timeout=timeout_s)[0] if waiting else []
        if len(free) < len(workers):
            findings.append(
                Finding(
                    node="cluster",
                    check="nccl",
                    level="warning",
                    found=f"not tried: {len(free)} of {len(workers)} GPUs were free within"
                    f" {timeout_s:g} s",
                    advice="run the doctor while no job holds GPUs",
                )
            )
        yield workers if len(free) == len(workers) else []
    finally:
        for worker in workers:
            ray.kill(worker.actor)


def _names() -> list[str]:
    """Names of the nodes for people: host and address, with Ray's id where that is not unique."""
    nodes = _alive()
    plain = [f"{n['NodeManagerHostname']} ({n['NodeManagerAddress']})" for n in nodes]
    shared = Counter(plain)
    return [
        name if shared[name] == 1 else f"{name[:-1]}, {str(node['NodeID'])[:8]})"
        for name, node in zip(plain, nodes, strict=True)
    ]


def _answering(nodes: list[Examined], timeout_s: float, findings: list[Finding]) -> list[Examined]:
    waiting = {node.actor.clock.remote(): node for node in nodes}
    ray.wait(list(waiting), num_returns=len(waiting), timeout=timeout_s)
    answering = []
    for future, node in waiting.items():
        try:
            ray.get(future, timeout=0)
            answering.append(node)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayError) as error:
            findings.append(
                Finding(
                    node=node.name,
                    check="process",
                    level="failure",
                    found=f"no process could be started within {timeout_s:g} s"
                    f" ({type(error).__name__})",
                    advice="look at that node's Ray logs; is our wheel installed there?",
                )
            )
    return answering


def _look(
    nodes: Sequence[Examined], grades: Grades, timeout_s: float, findings: list[Finding]
) -> None:
    """What each node says of itself and how it differs from the others and from this process; its
    clock. A node that does not answer in time, or dies meanwhile, is a finding.
    """
    facts: dict[str, NodeFacts] = {}
    asked = [node.actor.facts.remote() for node in nodes]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=timeout_s)
    for node, future in zip(nodes, asked, strict=True):
        try:
            facts[node.name] = ray.get(future, timeout=0)
            skew = _skew(node, timeout_s)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayError) as error:
            findings.append(
                Finding(
                    node=node.name,
                    check="process",
                    level="failure",
                    found=f"it could not be looked at: {error}".splitlines()[0],
                    advice="look at that node's Ray logs",
                )
            )
        else:
            findings.append(judge_clock(node.name, *skew, grades))
    findings += judge_nodes(facts, grades, versions())


def _skew(node: Examined, timeout_s: float) -> tuple[float, float]:
    """A node's clock against this process's, and how sure that is, by the quickest of some tries.

    Cristian 1989: the answer is as old as half of the round trip, give or take that half.
    """
    best = (0.0, float("inf"))
    for _ in range(_CLOCK_TRIES):
        start = time.time()
        there = float(ray.get(node.actor.clock.remote(), timeout=timeout_s))
        half = (time.time() - start) / 2
        if half < best[1]:
            best = (there - start - half, half)
    return best
