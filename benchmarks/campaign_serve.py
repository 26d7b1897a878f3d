"""An endpoint under more than it can do, and under deaths: does it keep its word?

    python benchmarks/campaign_serve.py overload [--minutes 30]   twice saturation on this machine
    python benchmarks/campaign_serve.py mixed [--seconds 60]      two pools of a cluster, one dies
    python benchmarks/campaign_serve.py upgrade [--seconds 60]    three rolling upgrades under load
    python benchmarks/campaign_serve.py sigterm [--seconds 20]    SIGTERM under load

overload: closed-loop clients find the saturation; then requests arrive at twice that rate (Poisson)
from clients that come back when `Retry-After` says. Stated: statuses, goodput against saturation,
told and true waits, latencies of what was accepted, memory, and that every accepted job ends.
mixed: a cluster of three nodes in one machine, samplers of two paces (`least_step_s`); clips a
second against the sum of the pools alone; then the node of one pool is killed under load and every
accepted job must end well. upgrade, sigterm: no request may fail. Each prints one JSON line and
exits 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from bench_serve import quantiles, saturate, serve_config

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.serve import (
    EncoderConfig,
    PoolConfig,
    QueueConfig,
    ScaleConfig,
    ServeConfig,
    ServedModel,
    WarmUpConfig,
)

_WORDS = ("walks", "jumps", "waves", "turns", "kneels", "runs", "bows", "kicks")


@dataclass
class Tally:
    """What clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    """(seconds that the first refusal told, seconds until the same request was taken)."""
    accepted: list[str] = field(default_factory=list)
    clips: int = 0


class Clients:
    """Requests over one session."""

    def __init__(self, url: str, frames: int, tally: Tally) -> None:
        self.url, self.frames, self.tally = url, frames, tally
        self._numbers = itertools.count()

    def body(self) -> dict[str, Any]:
        """The next request: its own prompt and seed."""
        number = next(self._numbers)
        text = f"a person {_WORDS[number % 8]} {number} times"
        return {"text": text, "num_frames": self.frames, "seeds": [number]}

    async def ask(
        self, session: aiohttp.ClientSession, patience_s: float, prefer: str | None = None
    ) -> None:
        """One request, sent again as told until it is taken or patience ends."""
        body, first, told = self.body(), time.monotonic(), 0.0
        headers = {"Prefer": prefer} if prefer else {}
        while True:
            sent = time.monotonic()
            try:
                async with session.post(
                    f"{self.url}/v1/motions", json=body, headers=headers
                ) as answer:
                    status, document = answer.status, await answer.json()
                    wait = float(answer.headers.get("Retry-After", 0))
            except (aiohttp.ClientError, TimeoutError) as error:
                self.tally.statuses[type(error).__name__] += 1
                return
            self.tally.statuses[str(status)] += 1
            if status == 429:
                if not told:
                    told, first = wait, sent
                if sent + wait - first > patience_s:
                    return
                await asyncio.sleep(wait)
                continue
            if told:
                self.tally.waits.append((told, sent - first))
            if status in (200, 202):
                self.tally.accepted.append(document["id"])
            if status == 200:
                self.tally.latencies.append(time.monotonic() - sent)
                self.tally.clips += 1
            return


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=900), connector=aiohttp.TCPConnector(limit=0)
    )


async def arrive(
    url: str, rate: float, seconds: float, frames: int, tally: Tally, memory: list[float]
) -> None:
    """Requests at random times, `rate` a second; everything is waited for."""
    clients, dice = Clients(url, frames, tally), random.Random(0)
    async with await _session() as session:
        tasks: set[asyncio.Task[None]] = set()
        until, looked, told = time.monotonic() + seconds, 0.0, time.monotonic()
        while time.monotonic() < until:
            await asyncio.sleep(dice.expovariate(rate))
            task = asyncio.create_task(clients.ask(session, patience_s=30.0))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if time.monotonic() - looked > 5.0:
                looked = time.monotonic()
                memory.append(_memory_mib())
            if time.monotonic() - told > 60.0:
                told = time.monotonic()
                so_far = {"left_s": round(until - told), "clips": tally.clips}
                print(json.dumps(so_far | dict(tally.statuses)), file=sys.stderr, flush=True)
        if tasks:
            await asyncio.wait(tasks, timeout=300)


async def _all_end(url: str, ids: list[str], within_s: float) -> Counter[str]:
    """States of jobs, once none is open or time is up."""
    states: Counter[str] = Counter()
    until = time.monotonic() + within_s
    async with await _session() as session:
        for job_id in ids:
            state = "unknown"
            while time.monotonic() < until:
                with contextlib.suppress(aiohttp.ClientError, ValueError):
                    async with session.get(f"{url}/v1/motions/{job_id}") as answer:
                        state = (await answer.json()).get("state", str(answer.status))
                    if state not in ("queued", "running"):
                        break
                await asyncio.sleep(0.3)
            states[state] += 1
    return states


def _memory_mib() -> float:
    """Resident memory of all Serve processes below this one."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "Serve" in process.name() or "ray::" in process.name():
                total += process.memory_info().rss
    return total / 2**20


def overload(args: argparse.Namespace) -> dict[str, Any]:
    """Twice saturation for a while."""
    from hymotion_ray.engine.serve.server import running

    with tempfile.TemporaryDirectory() as folder:
        config = serve_config(args.port, str(Path(folder) / "jobs"), 4, args.processes)
        config = dataclasses.replace(config, queue=QueueConfig(max_wait_s=8.0))
        with running(config, "local") as server:
            _until_ready(server.url)
            saturation, _, _ = asyncio.run(saturate(server.url, 12, args.measure_seconds))
            tally, memory = Tally(), []
            seconds = 60.0 * args.minutes
            asyncio.run(arrive(server.url, 2 * saturation, seconds, 90, tally, memory))
            states = asyncio.run(_all_end(server.url, tally.accepted, 120.0))
    goodput = tally.clips / seconds
    ratios = [max(truth, 1.0) / told for told, truth in tally.waits]
    within = sum(0.5 <= ratio <= 2.0 for ratio in ratios) / max(1, len(ratios))
    third = max(1, len(memory) // 3)
    return {
        "minutes": args.minutes,
        "saturation_clips_per_s": round(saturation, 2),
        "goodput_of_saturation": round(goodput / saturation, 3),
        "statuses": dict(tally.statuses),
        "ends": dict(states),
        "accepted_latency_s": quantiles(tally.latencies) if len(tally.latencies) > 1 else {},
        "retry_after_within_2x": round(within, 3),
        "refusals_followed_up": len(ratios),
        "memory_mib_first_third": round(statistics.mean(memory[:third])),
        "memory_mib_last_third": round(statistics.mean(memory[-third:])),
        "ok": not any(s.startswith("5") or not s.isdigit() for s in tally.statuses)
        and goodput >= 0.9 * saturation
        and set(states) <= {"succeeded"}
        and within >= 0.9,
    }


def _until_ready(url: str, within_s: float = 900.0, pools: int = 1) -> None:
    """Return when the endpoint is ready and so many of its pools have samplers."""
    import httpx

    until = time.monotonic() + within_s
    why = ""
    while time.monotonic() < until:
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(f"{url}/readyz", timeout=10)
            why = answer.text
            if answer.status_code == 200:
                (model,) = httpx.get(f"{url}/v1/models", timeout=10).json()["data"]
                if sum(pool["replicas"] > 0 for pool in model["pools"]) >= pools:
                    return
        time.sleep(0.5)
    raise SystemExit(f"not ready after {within_s:g} s: {why}")


_PACES = {"a10": 0.6, "a100": 0.2}
"""Seconds a step, far more than it takes here: else this machine's pace would be measured."""


def _mixed_config(args: argparse.Namespace, folder: str) -> ServeConfig:
    """A slow and a fast pool, each on a node of its own."""
    scale = ScaleConfig(min_replicas=1, max_replicas=1)
    pools = tuple(
        PoolConfig(
            name=name, labels=(f"pool={name}",), rows=4, least_step_s=pace, scale=scale, cpus=1.0
        )
        for name, pace in _PACES.items()
    )
    base = serve_config(args.port, folder, 4, 1)
    # Else these may take the one CPU of a sampler's node.
    apart = ("pool=head",)
    encoder = EncoderConfig(labels=apart)
    return dataclasses.replace(
        base,
        models=(ServedModel(model="tiny", encoder=encoder, pools=pools),),
        http=dataclasses.replace(base.http, labels=apart),
        queue=QueueConfig(max_wait_s=600.0, stall_s=30.0),
        warm_up=WarmUpConfig(frames=(30,)),
    )


def mixed(args: argparse.Namespace) -> dict[str, Any]:
    """Throughput of two pools together, and the death of one pool's node."""
    import ray
    from ray.cluster_utils import Cluster

    health = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 1000,
        "health_check_timeout_ms": 5000,
        "health_check_failure_threshold": 5,
    }
    head = {
        "num_cpus": 4,
        "include_dashboard": False,
        "labels": {"pool": "head"},
        "_system_config": health,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = {
        name: cluster.add_node(num_cpus=1, labels={"pool": name}, object_store_memory=100 * 2**20)
        for name in ("a10", "a100")
    }
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    from hymotion_ray.engine.serve.server import running

    try:
        with tempfile.TemporaryDirectory() as folder:
            config = _mixed_config(args, str(Path(folder) / "jobs"))
            with running(config) as server:
                _until_ready(server.url, pools=2)
                # A batch of 4 rows and 24 steps.
                alone = {name: 4 / (24 * pace) for name, pace in _PACES.items()}
                rate, _, _ = asyncio.run(saturate(server.url, 24, args.seconds, frames=30))
                tally = Tally()
                asyncio.run(_accept(server.url, tally, 40))
                time.sleep(3.0)
                cluster.remove_node(nodes["a100"], allow_graceful=False)
                states = asyncio.run(_all_end(server.url, tally.accepted, 400.0))
    finally:
        ray.shutdown()
        cluster.shutdown()
    share = rate / sum(alone.values())
    return {
        "clips_per_s": round(rate, 3),
        "of_the_sum": round(share, 3),
        "accepted": len(tally.accepted),
        "ends": dict(states),
        "ok": share >= 0.9 and set(states) == {"succeeded"},
    }


async def _accept(url: str, tally: Tally, number: int) -> None:
    clients = Clients(url, 30, tally)
    async with await _session() as session:
        for _ in range(number):
            await clients.ask(session, 60.0, prefer="respond-async")


def upgrade(args: argparse.Namespace) -> dict[str, Any]:
    """Three rolling upgrades under load: no request may fail."""
    from hymotion_ray.engine.serve.server import deploy, running

    with tempfile.TemporaryDirectory() as folder:
        config = serve_config(args.port, str(Path(folder) / "jobs"), 4, 1)
        with running(config, "local") as server:
            _until_ready(server.url)
            tally, stop = Tally(), threading.Event()
            load = threading.Thread(target=lambda: asyncio.run(_until(server.url, tally, stop)))
            load.start()
            for number in range(3):
                time.sleep(args.seconds / 3)
                limits = dataclasses.replace(server.config.limits, max_seeds=10 + number)
                changed = dataclasses.replace(server.config, limits=limits)
                deploy(changed)
            time.sleep(args.seconds / 3)
            stop.set()
            load.join(timeout=300)
    ok = set(tally.statuses) <= {"200", "429"} and tally.clips > 0
    return {"statuses": dict(tally.statuses), "clips": tally.clips, "ok": ok}


async def _until(url: str, tally: Tally, stop: threading.Event) -> None:
    clients = Clients(url, 30, tally)

    async def client(session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            await clients.ask(session, 60.0)

    async with await _session() as session:
        await asyncio.gather(*(client(session) for _ in range(4)))


def sigterm(args: argparse.Namespace) -> dict[str, Any]:
    """SIGTERM under load: what was taken on is answered, what comes later is refused."""
    with tempfile.TemporaryDirectory() as folder:
        config = serve_config(args.port, str(Path(folder) / "jobs"), 4, 1)
        # A request takes six seconds at least: what was taken on outlasts the signal by seconds.
        (model,) = config.models
        pools = tuple(dataclasses.replace(pool, least_step_s=0.25) for pool in model.pools)
        config = dataclasses.replace(config, models=(dataclasses.replace(model, pools=pools),))
        file = Path(folder) / "serve.json"
        file.write_text(json.dumps(to_mapping(config)), encoding="utf-8")
        command = [sys.executable, "-m", "hymotion_ray.cli", "serve", "--config", str(file)]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{args.port}"
        try:
            _until_ready(url)
            tally = Tally()
            asyncio.run(_under_load(url, tally, args.seconds, server.pid))
            server.wait(timeout=240)
        finally:
            if server.poll() is None:
                server.kill()
    others = {s: n for s, n in tally.statuses.items() if s not in ("200", "429")}
    # After the signal: 503 with Retry-After, and once all is answered no connection at all.
    refused = {"503", "ClientConnectorError"}
    return {
        "statuses": dict(tally.statuses),
        "exit_code": server.returncode,
        "ok": server.returncode == 0 and not set(others) - refused and tally.clips > 0,
    }


async def _under_load(url: str, tally: Tally, seconds: float, pid: int) -> None:
    clients = Clients(url, 30, tally)
    stop = asyncio.Event()

    async def client(session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            await clients.ask(session, 60.0)

    async with await _session() as session:
        tasks = [asyncio.create_task(client(session)) for _ in range(4)]
        await asyncio.sleep(seconds)
        os.kill(pid, signal.SIGTERM)
        await asyncio.sleep(1.0)
        stop.set()
        await asyncio.wait(tasks, timeout=120)


def main() -> None:
    """Run one campaign; exit 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["overload", "mixed", "upgrade", "sigterm"])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--measure-seconds", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=8243)
    args = parser.parse_args()
    runs = {"overload": overload, "mixed": mixed, "upgrade": upgrade, "sigterm": sigterm}
    found = runs[args.what](args) | {"load": round(os.getloadavg()[0], 1)}
    print(json.dumps(found))
    sys.exit(0 if found["ok"] else 1)


if __name__ == "__main__":
    main()
