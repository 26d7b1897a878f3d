"""Which share of bulk rendering's pace does serving keep, and what does HTTP add to a request?

Saturation: closed-loop clients, enough of them to keep every batch full, send one-clip requests
over HTTP for a while; clips a second between warm-up and end, and CPU seconds a clip of all
processes together, are set against `bench_render.py`'s bulk render of the same clips on this
machine. What a busy machine disturbs least is the ratio of CPU seconds.

Overhead: one client, one request after another, against a sampler that takes one step of one tiny
clip; what the sampler itself took, steps and the way to the npz file, is taken off. Once with the
condition in the cache, once with a new text each time.

    python benchmarks/bench_serve.py [--seconds 60] [--clients 24] [--rounds 1] [--haproxy]
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from bench_render import cpu_of_all, make_chunks, run_ray

from hymotion_ray.config.render import RenderConfig
from hymotion_ray.config.serve import (
    HttpConfig,
    JobsConfig,
    PoolConfig,
    QueueConfig,
    RequestLimits,
    ScaleConfig,
    ServeConfig,
    ServedModel,
)
from hymotion_ray.engine.render.model_info import ModelInfo, default_grid

_FRAMES = 90
_WORDS = ("walks", "jumps", "waves", "turns", "kneels", "runs", "bows", "kicks")


def serve_config(port: int, folder: str, rows: int, processes: int) -> ServeConfig:
    """An endpoint of `tiny` with as many samplers as bulk has processes."""
    scale = ScaleConfig(min_replicas=processes, max_replicas=processes)
    pool = PoolConfig(rows=rows, scale=scale)
    return ServeConfig(
        models=(ServedModel(model="tiny", pools=(pool,)),),
        http=HttpConfig(port=port),
        limits=RequestLimits(wait_s=600.0),
        queue=QueueConfig(max_wait_s=600.0),
        jobs=JobsConfig(folder=folder),
    )


async def saturate(
    url: str, clients: int, seconds: float, frames: int = _FRAMES
) -> tuple[float, float, list[float]]:
    """(clips a second, CPU seconds a clip, latencies) between warm-up and end."""
    latencies: list[float] = []
    done = 0
    stop = time.monotonic() + seconds

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal done
        count = 0
        while time.monotonic() < stop:
            text = f"a person {_WORDS[count % 8]} {number * 1000 + count} times"
            body = {"text": text, "num_frames": frames, "seeds": [count]}
            began = time.monotonic()
            while True:
                async with session.post(f"{url}/v1/motions", json=body) as answer:
                    job = await answer.json()
                if answer.status != 429:
                    break
                await asyncio.sleep(float(answer.headers["Retry-After"]))
            assert answer.status == 200, job
            async with session.get(f"{url}{job['result_url']}") as result:
                assert len(await result.read()) > 10_000
            latencies.append(time.monotonic() - began)
            done += 1
            count += 1

    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        tasks = [asyncio.create_task(client(session, n)) for n in range(clients)]
        await asyncio.sleep(min(10.0, seconds / 4))
        first, began, cpu = done, time.monotonic(), cpu_of_all()
        latencies.clear()
        await asyncio.sleep(max(1.0, stop - time.monotonic()))
        last, ended, cpu_end = done, time.monotonic(), cpu_of_all()
        await asyncio.gather(*tasks)
    clips = last - first
    return clips / (ended - began), (cpu_end - cpu) / max(1, clips), latencies


async def overhead(url: str, number: int, *, new_texts: bool) -> list[float]:
    """Milliseconds that a request takes beyond its sampler's own, one after another."""
    found: list[float] = []
    async with aiohttp.ClientSession() as session:
        for count in range(number + 20):
            text = f"a person waves {count} times" if new_texts else "a person waves"
            body = {
                "text": text,
                "num_frames": 20,
                "num_steps": 1,
                "guidance_scale": 1.0,
                "seeds": [count],
            }
            began = time.monotonic()
            async with session.post(f"{url}/v1/motions", json=body) as answer:
                job = await answer.json()
            took = time.monotonic() - began
            if count >= 20:
                info = job["clips"][0]["info"]
                found.append(1000 * (took - info["seconds"] - info["finish_seconds"]))
    return found


def quantiles(values: list[float]) -> dict[str, float]:
    """p50, p95 and p99."""
    cuts = statistics.quantiles(values, n=100)
    return {"p50": round(cuts[49], 3), "p95": round(cuts[94], 3), "p99": round(cuts[98], 3)}


def measure_serving(args: argparse.Namespace) -> dict[str, Any]:
    """One endpoint: overhead first, then saturation."""
    from hymotion_ray.engine.serve.server import running

    with tempfile.TemporaryDirectory() as folder:
        config = serve_config(args.port, str(Path(folder) / "jobs"), args.rows, args.processes)
        with running(config, "local") as server:
            while not server.ready()[0]:
                time.sleep(0.5)
            found: dict[str, Any] = {}
            for name, new in (("overhead_ms", False), ("overhead_encoder_hop_ms", True)):
                values = asyncio.run(overhead(server.url, args.requests, new_texts=new))
                found[name] = quantiles(values)
            rate, cpu, latencies = asyncio.run(saturate(server.url, args.clients, args.seconds))
            found |= {"clips_per_s": rate, "cpu_s_a_clip": cpu, "latency_s": quantiles(latencies)}
            return found


def measure_bulk(args: argparse.Namespace) -> dict[str, float]:
    """The same clips through a bulk render."""
    config = RenderConfig(prompts=("none",), model="tiny", out="none")
    info = ModelInfo.read(config)
    grid = dataclasses.replace(default_grid(config.resources, has_gpus=False), rows=args.rows)
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "out")
        settings = info.stage_settings(config, grid, out=out, hashed_folders=False)
        chunks = make_chunks(info, args.prompts, args.rows)
        pace = run_ray(info, settings, chunks, args.rows)
    return {"clips_per_s": pace.clips_per_s, "cpu_s_a_clip": pace.cpu_s_a_clip}


def main() -> None:
    """Print one JSON line: serving against bulk."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=8242)
    parser.add_argument("--haproxy", action="store_true", help="Ray Serve's HAProxy mode")
    parser.add_argument("--skip-bulk", action="store_true")
    args = parser.parse_args()
    if args.haproxy:
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
    rounds = []
    for _ in range(args.rounds):
        serving = measure_serving(args)
        print(json.dumps({"serving": serving}), flush=True)
        if not args.skip_bulk:
            bulk = measure_bulk(args)
            print(json.dumps({"bulk": bulk}), flush=True)
            rounds.append((serving, bulk))
    if rounds:
        rate = [s["clips_per_s"] / b["clips_per_s"] for s, b in rounds]
        cpu = [b["cpu_s_a_clip"] / s["cpu_s_a_clip"] for s, b in rounds]
        summary = {
            "ratio_of_rates": round(statistics.median(rate), 3),
            "ratio_of_cpu": round(statistics.median(cpu), 3),
            "load": round(os.getloadavg()[0], 1),
        }
        print(json.dumps(summary))


if __name__ == "__main__":
    main()
