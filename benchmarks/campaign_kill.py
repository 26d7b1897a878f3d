"""Does a render job lose, double or change anything when its processes are killed again and again?

A cluster of several nodes on this machine (GPUs in name only, so that encoder, samplers and
writers are processes of their own). Each round renders the same prompts into a new folder while
SIGKILLs hit it, then runs the command again until it ends, and compares with an unbroken run: the
same bytes, one manifest row an item, no unfinished file, and little more computed than asked.

Rounds are kept in the work folder; run again to go on until `--kills` have been dealt.

    python benchmarks/campaign_kill.py [--kills 100] [--model tiny] [--work DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")
if "RAY_TMPDIR" not in os.environ:
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="hmr", dir="/tmp")

from ray.cluster_utils import Cluster

from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.formats.atomic import open_store

ROWS = 4
NUM_PROMPTS = 60
SAMPLERS = 2
SECONDS_A_RUN = 600
FAST_HEALTH_CHECK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 30000,  # a busy machine answers late; a killed node at once
    "health_check_failure_threshold": 10,
}
WORKER_POINTS = {
    "mid-batch": "sample:{}:kill",
    "encoder": "encode:{}:kill",
    "mid-upload": "rename:{}:kill:motions/",
    "file before its row": "files-written:{}:kill",
    "mid-manifest": "rename:{}:kill:manifest/part-",
}
"""Points inside of a worker, as faults; the number is the arrival that dies."""
DRIVER_POINTS = {
    "driver at planning": "planned:1:kill",
    "driver at closing": "closing:1:kill",
    "driver in the summary": "rename:1:kill:summary.json",
}
ROUND = (
    ("mid-upload", 2),
    ("file before its row", 2),
    ("mid-manifest", 2),
    ("mid-batch", 1),
    ("driver", 1),
)
"""Kills of every round; one more comes in turn from `EXTRA`."""
EXTRA = (
    "encoder",
    "node",
    "driver at planning",
    "node",
    "driver at closing",
    "driver in the summary",
)


@dataclass
class Round:
    """One folder, the kills that it met and what came of it."""

    number: int
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    asked: int = NUM_PROMPTS
    computed: int = 0
    faults: list[str] = field(default_factory=list)
    """What is wrong with the result; empty when all is well."""

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**vars(self), "kills": dict(self.kills)}


class Nodes:
    """The cluster: a head without CPUs for work, a node of CPUs, two nodes with a GPU in name."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": 100 * 2**20,
                "_system_config": FAST_HEALTH_CHECK,
            },
        )
        self._shapes = [
            {"num_cpus": 3, "object_store_memory": 100 * 2**20},
            {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 100 * 2**20},
            {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 100 * 2**20},
        ]
        self._nodes = [self._add(shape) for shape in self._shapes]

    def _add(self, shape: dict[str, Any]) -> Any:
        """A new node; a busy machine may need several tries within Ray's own time limit."""
        for tries_left in range(9, -1, -1):
            try:
                return self.cluster.add_node(**shape)
            except Exception:  # Ray raises it plain
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def kill_one(self, number: int) -> None:
        """SIGKILL a node with all that runs there, and put a new one in its place."""
        place = number % len(self._nodes)
        self.cluster.remove_node(self._nodes[place], allow_graceful=False)
        self._nodes[place] = self._add(self._shapes[place])


class Job:
    """The command of one round."""

    def __init__(self, prompts: Path, model: str, folder: Path, address: str) -> None:
        self.out, self.faults = folder / "out", folder / "faults"
        self.faults.mkdir(parents=True, exist_ok=True)
        self._command = [
            *(sys.executable, "-m", "hymotion_ray.cli", "render", str(prompts)),
            *("--model", model, "--out", str(self.out), "--address", address),
            *("--steps", "4", "--rows", str(ROWS), "--samplers", str(SAMPLERS)),
            *("--preview-clips", "2"),
        ]
        self._log = folder / "log.txt"

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; what it says goes to the round's log."""
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                env={**os.environ, "HYMOTION_FAULTS": str(self.faults)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def plan(self, lines: list[str]) -> None:
        """The faults from now on."""
        (self.faults / "plan").write_text("\n".join(lines), encoding="utf-8")

    def arrivals(self, point: str) -> list[str]:
        """Details of the arrivals at a point."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.faults / "log").read_text(encoding="utf-8").splitlines()
            return [f[3] for line in lines if (f := line.split("\t", 3))[0] == point]
        return []

    def dealt(self) -> int:
        """Faults that have struck: the marks of the counts they were planned for."""
        struck = 0
        for entry in (self.faults / "plan").read_text(encoding="utf-8").splitlines():
            key = hashlib.sha256(entry.encode()).hexdigest()[:12]
            struck += (self.faults / f"{key}-{entry.split(':')[1]}").exists()
        return struck


def play(job: Job, nodes: Nodes, current: Round, draw: random.Random) -> None:
    """Deal the kills of one round and run the command until it ends by itself."""
    kinds = [kind for kind, times in ROUND for _ in range(times)]
    kinds.append(EXTRA[current.number % len(EXTRA)])
    num_chunks = NUM_PROMPTS // ROWS
    lines, outside = [], []
    for kind in kinds:
        if kind in WORKER_POINTS:
            most = NUM_PROMPTS if kind == "mid-upload" else num_chunks
            lines.append(WORKER_POINTS[kind].format(draw.randint(1, most - 2)))
        elif kind in DRIVER_POINTS:
            lines.append(DRIVER_POINTS[kind])
        else:
            outside.append((draw.randint(1, num_chunks - 2), kind))
    lines = list(dict.fromkeys(lines))
    job.plan(lines)
    process = job.start()
    current.runs = 1
    for arrivals, kind in sorted(outside):
        while process.poll() is None and len(job.arrivals("sample")) < arrivals:
            time.sleep(0.05)
        if process.poll() is not None:
            process = rerun(job, current)
        if kind == "driver":
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = rerun(job, current)
        else:
            nodes.kill_one(current.number // 2)
        current.kills[kind] += 1
    while (code := wait(process)) == -signal.SIGKILL:
        process = rerun(job, current)
    if code != 0:
        current.faults.append(f"exit code {code}")
    struck = job.dealt()
    if struck < len(lines):
        current.faults.append(f"only {struck} of {len(lines)} planned kills struck")
    for kind in kinds:
        if kind not in ("driver", "node"):
            current.kills[kind] += 1


def wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code; a run that takes far too long is ended, and the campaign with it."""
    try:
        return process.wait(timeout=SECONDS_A_RUN)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def rerun(job: Job, current: Round) -> subprocess.Popen[bytes]:
    """The same command again."""
    current.runs += 1
    return job.start()


def check(job: Job, current: Round, whole: dict[str, str]) -> None:
    """Compare a round's folder with the unbroken run's."""
    found = hashes(job.out)
    if found != whole:
        wrong = sorted(n for n in set(found) | set(whole) if found.get(n) != whole.get(n))
        current.faults.append(f"{len(wrong)} clips differ: {wrong[:3]}")
    rows = [r for b in read_batches(open_store(job.out)) for r in b.to_pylist()]
    if Counter(r["id"] for r in rows) != Counter({f"c{n}": 1 for n in range(NUM_PROMPTS)}):
        current.faults.append(f"{len(rows)} manifest rows for {NUM_PROMPTS} items")
    if any(r["status"] != "done" or found.get(r["file"]) != r["sha256"] for r in rows):
        current.faults.append("a manifest row does not fit its file")
    if list(job.out.rglob("*.tmp")) or (job.out / ".work").exists():
        current.faults.append("unfinished files are left")
    current.computed = sum(texts.count(" | ") + 1 for texts in job.arrivals("sample-done"))
    most = NUM_PROMPTS + current.kills.total() * ROWS * SAMPLERS
    if current.computed > most:
        current.faults.append(f"{current.computed} clips computed, at most {most} explained")


def hashes(out: Path) -> dict[str, str]:
    """sha256 of every clip, by name."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*.npz"))
    }


def main() -> None:
    """Play rounds until the kills are dealt, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--work", type=Path, default=Path("campaign-kill"))
    args = parser.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    kept = work / "rounds.jsonl"
    rounds = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    if sum(sum(r["kills"].values()) for r in rounds) < args.kills:
        go_on(work, kept, rounds, args)
    print_table(rounds)
    sys.exit(any(r["faults"] for r in rounds))


def go_on(work: Path, kept: Path, rounds: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Play the rounds that are missing."""
    prompts = work / "prompts.txt"
    prompts.write_text(
        "".join(f"A person walks {n} steps.#{20 + n % 30}#c{n}\n" for n in range(NUM_PROMPTS))
    )
    nodes = Nodes()
    try:
        whole = hashes(unbroken(prompts, args.model, work, nodes.cluster.address))
        while sum(sum(r["kills"].values()) for r in rounds) < args.kills:
            current = Round(len(rounds))
            folder = Path(tempfile.mkdtemp(prefix=f"round-{current.number:03d}-", dir=work))
            job = Job(prompts, args.model, folder, nodes.cluster.address)
            play(job, nodes, current, random.Random(current.number))
            check(job, current, whole)
            rounds.append(current.to_mapping())
            with kept.open("a") as file:
                file.write(json.dumps(rounds[-1]) + "\n")
            print(json.dumps(rounds[-1]), flush=True)
    finally:
        nodes.cluster.shutdown()


def unbroken(prompts: Path, model: str, work: Path, address: str) -> Path:
    """The folder of a run that nothing disturbed; made once."""
    job = Job(prompts, model, work / "whole", address)
    if not (job.out / "summary.json").exists():
        code = job.start().wait(timeout=SECONDS_A_RUN)
        if code:
            raise SystemExit(f"the unbroken run ended with {code}; see {work / 'whole/log.txt'}")
    return job.out


def print_table(rounds: list[dict[str, Any]]) -> None:
    """Kills by point, and what they did."""
    kills: Counter[str] = Counter()
    for one in rounds:
        kills.update(one["kills"])
    print(f"{'point':24} kills")
    for point, number in sorted(kills.items()):
        print(f"{point:24} {number}")
    asked = NUM_PROMPTS * len(rounds)
    extra = sum(r["computed"] for r in rounds) - asked
    print(
        f"{'all':24} {kills.total()} in {len(rounds)} rounds, {sum(r['runs'] for r in rounds)} runs"
    )
    print(
        f"clips computed beyond the {asked} asked: {extra},"
        f" {extra / max(1, kills.total()):.2f} a kill"
    )
    faults = [f"round {r['number']}: {fault}" for r in rounds for fault in r["faults"]]
    print("\n".join(faults) or "every round: the bytes of the unbroken run, each item once")


if __name__ == "__main__":
    main()
