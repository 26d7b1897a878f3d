"""How well does one queue serve unlike machines that come and go?

A cluster of several nodes on this machine, with GPUs that exist in name only. The sampler is a
stand-in that sleeps, three times as long on a node of the slow kind. Printed: the time against the
sum of paces, tail included; what a node added mid-way did; what was lost when one was killed; and
where the CPU-only steps ran.

    python benchmarks/campaign_mixed.py [--chunks 120] [--seconds 0.2] [--json]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if "RAY_TMPDIR" not in os.environ:
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="hmr", dir="/tmp")

import ray
from ray.cluster_utils import Cluster

from hymotion_ray.config.render import ResourceConfig
from hymotion_ray.engine.cluster import connect
from hymotion_ray.engine.dispatch import Dispatcher
from hymotion_ray.engine.nodes import living_nodes
from hymotion_ray.engine.pool import Step
from hymotion_ray.engine.render.placement import Placement, place
from hymotion_ray.engine.stage import Chunk

FAST_HEALTH_CHECK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
SLOWER = 3.0
"""How many times slower the slow kind is."""
ITEMS_A_CHUNK = 4


@dataclass
class Log:
    """A stand-in stage that writes down where and when it worked, and sleeps by its node's kind."""

    name: str
    folder: str
    seconds: float = 0.0

    def setup(self) -> None:
        """Find out where this process is."""
        node_id = ray.get_runtime_context().get_node_id()
        node = next(n for n in ray.nodes() if n["NodeID"] == node_id)
        self._kind = next((k for k in ("slow", "fast", "late") if k in node["Resources"]), "cpu")
        self._seconds = self.seconds * (SLOWER if self._kind == "slow" else 1.0)

    def __call__(self, chunk: Chunk) -> Chunk:
        """Sleep, and write a line."""
        start = time.time()
        time.sleep(self._seconds)
        line = f"{self._kind}\t{start:.3f}\t{time.time():.3f}\t{chunk.key}\n"
        with open(f"{self.folder}/{self.name}", "a", encoding="utf-8") as file:
            file.write(line)
        return chunk


def make_chunks(number: int) -> list[Chunk]:
    """Chunks of a few items."""
    nothing = pa.array([None] * ITEMS_A_CHUNK, pa.string())
    return [
        Chunk(
            key=f"{n:06d}",
            items=pa.table(
                {
                    "text": [f"{n}-{k}" for k in range(ITEMS_A_CHUNK)],
                    "error_code": nothing,
                    "error": nothing,
                }
            ),
        )
        for n in range(number)
    ]


def make_steps(folder: str, seconds: float, placement: Placement) -> list[Step]:
    """The pools of a render job with a stand-in in each."""
    return [
        Step(
            name="encode",
            stages=(Log("encode", folder),),
            size=placement.encoders,
            num_cpus=placement.num_cpus,
            avoids_gpu_nodes=True,
        ),
        Step(
            name="sample",
            stages=(Log("sample", folder, seconds),),
            size=placement.samplers,
            num_cpus=placement.num_cpus,
            num_gpus=placement.sampler_gpus,
            resources=placement.sampler_resources,
        ),
        Step(
            name="finish",
            stages=(Log("finish", folder),),
            size=placement.finishers,
            num_cpus=placement.num_cpus,
            avoids_gpu_nodes=True,
        ),
    ]


def run(
    chunks: int, seconds: float, act: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """One run over the cluster as it is; `act` is called with the number of chunks done so far."""
    with tempfile.TemporaryDirectory() as folder, connect() as cluster:
        placement = place(ResourceConfig(), cluster, living_nodes(), encoder_is_large=False)
        dispatcher = Dispatcher(make_steps(folder, seconds, placement), lambda line: None)
        items: Counter[str] = Counter()
        for done, receipt in enumerate(dispatcher.run(make_chunks(chunks)), start=1):
            assert receipt.finished is not None
            items.update(receipt.finished["text"].to_pylist())
            act(done)
        sampled = read_log(folder, "sample")
        return {
            "once": set(items.values()) == {1} and len(items) == chunks * ITEMS_A_CHUNK,
            "sampled": sampled,
            "encode_on": sorted({kind for kind, *_ in read_log(folder, "encode")}),
            "finish_on": sorted({kind for kind, *_ in read_log(folder, "finish")}),
            "processes": dispatcher.mishaps.counts(),
        }


def read_log(folder: str, name: str) -> list[tuple[str, float, float, str]]:
    """Lines of a stand-in: kind of node, start, end, chunk."""
    lines = Path(folder, name).read_text(encoding="utf-8").splitlines()
    fields = [line.split("\t") for line in lines]
    return [(kind, float(start), float(end), key) for kind, start, end, key in fields]


def against_paces(found: dict[str, Any], chunks: int, seconds: float) -> dict[str, Any]:
    """Time from the moment both kinds were at work to the last chunk's end, against the paces."""
    sampled = found.pop("sampled")
    first = {kind: min(s for k, s, *_ in sampled if k == kind) for kind in ("slow", "fast")}
    start = max(first.values())
    before = sum(1 for _, s, *_ in sampled if s < start)
    taken = max(end for _, _, end, _ in sampled) - start
    rate = 1 / seconds + 1 / (SLOWER * seconds)
    shares = Counter(kind for kind, *_ in sampled)
    ideal = (chunks - before) / rate
    return found | {"shares": dict(shares), "seconds": round(taken, 2), "ideal": round(ideal, 2)}


def main() -> None:
    """Run the three cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=0.2, help="a chunk, on the fast kind")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 4,
            "include_dashboard": False,
            "object_store_memory": 100 * 2**20,
            "_system_config": FAST_HEALTH_CHECK,
        },
    )
    gpu_node = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 100 * 2**20}
    cluster.add_node(**gpu_node, resources={"sampler_slot": 1, "slow": 1})
    fast = cluster.add_node(**gpu_node, resources={"sampler_slot": 1, "fast": 1})
    ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    results: dict[str, Any] = {}
    try:
        results["paces"] = against_paces(run(args.chunks, args.seconds), args.chunks, args.seconds)
        results["late"], results["killed"] = late_and_killed(cluster, gpu_node, fast, args)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(results) if args.json else json.dumps(results, indent=1))


def late_and_killed(
    cluster: Cluster, gpu_node: dict[str, Any], fast: Any, args: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A node is added at a third of the work, another one is killed at two thirds."""
    added_at: list[float] = []
    killed_at: list[float] = []

    def act(done: int) -> None:
        if done == args.chunks // 3:
            cluster.add_node(**gpu_node, resources={"sampler_slot": 1, "late": 1})
            added_at.append(time.time())
        if done == 2 * args.chunks // 3:
            killed_at.append(time.time())
            threading.Thread(
                target=cluster.remove_node, args=(fast,), kwargs={"allow_graceful": False}
            ).start()

    found = run(args.chunks, args.seconds, act)
    sampled = found.pop("sampled")
    late = [start for kind, start, *_ in sampled if kind == "late"]
    joined = {
        "chunks_of_the_late_node": len(late),
        "seconds_until_its_first": round(min(late) - added_at[0], 2) if late else None,
    }
    again = len(sampled) - len({key for *_, key in sampled})
    return joined, found | {"chunks_sampled_again": again}


if __name__ == "__main__":
    main()
