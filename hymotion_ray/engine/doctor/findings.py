"""What is wrong, by the facts of all nodes: each finding with node, cause and what to do. Ray-free.

Knows the rules; looks at nothing itself.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hymotion_ray.config.doctor import Grades
from hymotion_ray.engine.doctor.facts import NodeFacts

Level = Literal["ok", "warning", "failure"]
_GB = 1e9
_MUST_AGREE = ("python", "ray", "torch", "hymotion-ray", "code")
_MIN_RAY = (2, 54)
HERE = "this command"
"""Stands in a finding for a node: the process that asks, which may be installed by itself."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    node: str
    """Host and address; of a pair `a -> b`; `cluster` for all."""
    check: str
    """Short stable word."""
    level: Level
    found: str
    advice: str = ""
    """What to do, where something is wrong."""

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def judge_nodes(
    facts: Mapping[str, NodeFacts], grades: Grades, here: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Findings on each node and on how they differ; `facts` by the node's name, `here` the versions
    of the process that asks.
    """
    held = {name: node.versions for name, node in facts.items()}
    yield from _versions(held if here is None else {**held, HERE: here})
    for name, node in facts.items():
        yield from _devices(name, node, grades)
        yield from _sizes(name, node, grades)
        yield from _names(name, node)
        yield _network(name, node)
    yield from _drivers(facts)
    if grades.gpus and facts and not any(node.gpus for node in facts.values()):
        yield Finding(
            node="cluster",
            check="gpus",
            level="failure",
            found=f"no GPU on any node, {grades.gpus} a node wanted",
            advice="look at `nvidia-smi` on a GPU node; its driver must answer before Ray starts",
        )


def judge_clock(name: str, skew_s: float, uncertainty_s: float, grades: Grades) -> Finding:
    """A node's clock against this one's, by a question whose way took `uncertainty_s`."""
    is_off = abs(skew_s) - uncertainty_s > grades.clock_skew_s
    return Finding(
        node=name,
        check="clock",
        level="failure" if is_off else "ok",
        found=f"{skew_s:+.2f} s against this machine, within {uncertainty_s:.2f} s",
        advice="start its time service (chrony or systemd-timesyncd)" if is_off else "",
    )


def _versions(held: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Each node against the version that most have; torch's builds (+cpu, +cu128) may differ."""
    plain = {
        name: {package: version.partition("+")[0] for package, version in versions.items()}
        for name, versions in held.items()
    }
    packages = sorted({package for versions in plain.values() for package in versions})
    usual = {
        package: Counter(versions.get(package, "none") for versions in plain.values())
        for package in packages
    }
    for name, versions in plain.items():
        differs = []
        for package in packages:
            own, (most, _) = versions.get(package, "none"), usual[package].most_common(1)[0]
            if own != most:
                differs.append((package, f"{package} {own}, elsewhere {most}"))
        grave = any(package in _MUST_AGREE for package, _ in differs)
        shown = ", ".join(f"{p} {held[name][p]}" for p in _MUST_AGREE if p in versions)
        if name == HERE and not differs:
            continue
        yield Finding(
            node=name,
            check="versions",
            level="failure" if grave else "warning" if differs else "ok",
            found="; ".join(words for _, words in differs) or shown,
            advice="install the same wheel and lock file, or use one image, on every node"
            if differs
            else "",
        )
        ray = versions.get("ray", "0.0").split(".")
        if tuple(map(int, ray[:2])) < _MIN_RAY:
            yield Finding(
                node=name,
                check="ray",
                level="failure",
                found=f"Ray {'.'.join(ray)}",
                advice="use Ray 2.54 or later: CVE-2026-27482 is fixed there",
            )


def _devices(name: str, node: NodeFacts, grades: Grades) -> Iterator[Finding]:
    kinds = Counter(gpu.name for gpu in node.gpus)
    wrong, advice = [], ""
    if node.gpus and len(node.gpus) < grades.gpus:
        wrong.append(f"{len(node.gpus)} GPUs, {grades.gpus} wanted")
        advice = "look at `nvidia-smi` and dmesg for a card that fell off the bus"
    small = [g for g in node.gpus if g.memory_bytes / _GB < grades.gpu_memory_gb]
    if small:
        wrong.append(f"{small[0].memory_bytes / _GB:.0f} GB, {grades.gpu_memory_gb:g} GB wanted")
        advice = advice or "use nodes with larger cards, or lower the grade"
    if node.gpus and node.cuda is None:
        wrong.append("torch is built without CUDA")
        advice = "install torch's CUDA build on this node"
    no_bf16 = "" if all(g.has_bf16 for g in node.gpus) else ", without bfloat16: float16 is used"
    shown = " + ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "no GPU"
    about = f", driver {node.driver}, CUDA {node.cuda}" if node.gpus else ""
    yield Finding(
        node=name,
        check="gpus",
        level="failure" if wrong else "ok",
        found="; ".join(wrong) or f"{shown}{about}{no_bf16}",
        advice=advice,
    )


def _drivers(facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    drivers = {node.driver for node in facts.values() if node.driver}
    if len(drivers) > 1:
        yield Finding(
            node="cluster",
            check="drivers",
            level="warning",
            found=f"NVIDIA drivers {', '.join(sorted(drivers))}",
            advice="NCCL prefers one driver everywhere; upgrade the older nodes",
        )


def _sizes(name: str, node: NodeFacts, grades: Grades) -> Iterator[Finding]:
    wanted = (
        ("memory", node.memory_bytes, grades.memory_gb, "use nodes with more memory"),
        (
            "shm",
            node.shm_bytes,
            grades.shm_gb,
            "enlarge /dev/shm: an emptyDir of medium Memory in Kubernetes, --shm-size in Docker",
        ),
        (
            "disk",
            node.disk_free_bytes,
            grades.disk_gb,
            "free space below Ray's temporary folder, or start Ray with another --temp-dir",
        ),
    )
    for check, held, least_gb, advice in wanted:
        is_small = held / _GB < least_gb
        yield Finding(
            node=name,
            check=check,
            level="failure" if is_small else "ok",
            found=f"{held / _GB:.1f} GB" + (f", {least_gb:g} GB wanted" if is_small else ""),
            advice=advice if is_small else "",
        )
    few = 0 <= node.open_files < grades.open_files
    yield Finding(
        node=name,
        check="open_files",
        level="warning" if few else "ok",
        found=f"{node.open_files} open files" + (f", {grades.open_files} wanted" if few else ""),
        advice="raise it: `ulimit -n 65536` before `ray start`, or LimitNOFILE" if few else "",
    )


def _names(name: str, node: NodeFacts) -> Iterator[Finding]:
    loops = [ip for ip in node.forward if ip.startswith("127.")]
    others = [ip for ip in node.forward if ip not in loops]
    if not node.forward:
        found = f"the name {node.host} leads to no address"
    elif node.ip not in node.forward and not node.ip.startswith("127."):
        found = f"the name {node.host} leads to {', '.join(others or loops)}, Ray uses {node.ip}"
    elif node.reverse is None:
        found = f"the address {node.ip} leads to no name"
    else:
        yield Finding(node=name, check="names", level="ok", found=f"{node.host} <-> {node.ip}")
        return
    yield Finding(
        node=name,
        check="names",
        level="warning",
        found=found,
        advice="put name and address of every node into DNS or /etc/hosts; torch meets by name",
    )


def _network(name: str, node: NodeFacts) -> Finding:
    speed = node.interfaces.get(node.interface or "")
    told = f" at {speed / 1000:g} Gbit/s" if speed else ""
    found = f"{node.interface or 'no interface found'}{told}"
    if node.infiniband:
        found += f", RDMA devices {', '.join(node.infiniband)}"
    advice = ""
    if (
        node.interface
        and len(node.interfaces) > 1
        and "NCCL_SOCKET_IFNAME" not in (node.communication)
    ):
        advice = f"NCCL_SOCKET_IFNAME={node.interface} keeps NCCL off the other interfaces"
    if node.infiniband and "NCCL_IB_HCA" not in node.communication:
        advice += f"{'; ' if advice else ''}NCCL_IB_HCA={','.join(node.infiniband)}"
    return Finding(node=name, check="network", level="ok", found=found, advice=advice)


def judge_bandwidth(rates: Mapping[tuple[str, str], float], grades: Grades) -> Iterator[Finding]:
    """Pairs below the grade, or far below the others; one line when all are well."""
    if not rates:
        return
    middle = statistics.median(rates.values())
    slow = False
    for (source, target), rate in rates.items():
        wanted = max(grades.gbit_s, middle / 4 if len(rates) > 2 else 0.0)
        if rate >= wanted:
            continue
        slow = True
        below = rate < grades.gbit_s
        yield Finding(
            node=f"{source} -> {target}",
            check="bandwidth",
            level="failure" if below else "warning",
            found=f"{rate:.2f} Gbit/s; {wanted:.2f} wanted, {middle:.2f} between most pairs",
            advice="look at the cable, the switch port and what else uses that link",
        )
    if not slow:
        yield Finding(
            node="cluster",
            check="bandwidth",
            level="ok",
            found=f"{min(rates.values()):.2f} to {max(rates.values()):.2f} Gbit/s over"
            f" {len(rates)} pairs, one connection each",
        )
