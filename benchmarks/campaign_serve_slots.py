"""How soon is a slot free again, and do samplers go to zero and come back when asked?

    python benchmarks/campaign_serve_slots.py cancel [--repeats 10]   cancel, and clients that leave
    python benchmarks/campaign_serve_slots.py zero                    scale to zero, back, and up

cancel: one sampler with room for one clip and steps of half a second runs a clip of a thousand
steps; a clip of two steps waits behind it. From the cancelling (or from the client's closing of its
connection) to the second clip's end are its own two steps and what it took to free the slot: that
is stated in steps, HTTP, the way through Ray and decoding included.
zero: a pool of none to two samplers. Stated: seconds of a request that finds no sampler, seconds
until there is none again, and whether jobs that nobody waits for bring a second sampler.
Each prints one JSON line and exits 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from bench_serve import serve_config
from campaign_serve import _until_ready

from hymotion_ray.config.serve import PoolConfig, ScaleConfig, ServeConfig, WarmUpConfig

_STEP_S = 0.5
_SHORT = {"num_frames": 30, "num_steps": 2}
_LONG = {"num_frames": 30, "num_steps": 1000}


def _config(args: argparse.Namespace, folder: str, pool: PoolConfig) -> ServeConfig:
    base = serve_config(args.port, folder, 1, 1)
    models = (dataclasses.replace(base.models[0], pools=(pool,)),)
    return dataclasses.replace(base, models=models, warm_up=WarmUpConfig(frames=(30,)))


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(f"{url}/v1/motions", json=body) as answer:
        job: dict[str, Any] = await answer.json()
        assert answer.status == 200, job
        return job


async def _slot(session: aiohttp.ClientSession, url: str, number: int, *, cancel: bool) -> float:
    """Steps from the end of a long clip's right to its slot to the first step of the next clip."""
    name = f"long-{number}"
    text = {"text": f"a person walks {number} times"}
    if cancel:
        made = await session.put(
            f"{url}/v1/motions/{name}", json=text | _LONG, headers={"Prefer": "respond-async"}
        )
        made.release()
        leaving = None
    else:
        leaving = asyncio.create_task(_post(session, url, text | _LONG))
    await asyncio.sleep(3 * _STEP_S)  # it is in the midst of its steps
    short = asyncio.create_task(_post(session, url, text | _SHORT))
    await asyncio.sleep(0.3 + 0.1 * (number % 5))
    assert not short.done()
    began = time.monotonic()
    if leaving is None:
        answer = await session.post(f"{url}/v1/motions/{name}/cancel")
        answer.release()
    else:
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
    await short
    return (time.monotonic() - began) / _STEP_S - _SHORT["num_steps"]


def cancel(args: argparse.Namespace) -> dict[str, Any]:
    """Steps until a slot is free, after a cancel and after a disconnect."""
    from hymotion_ray.engine.serve.server import running

    pool = PoolConfig(rows=1, least_step_s=_STEP_S, scale=ScaleConfig())

    async def measure(url: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
            await _post(session, url, {"text": "a person waits"} | _SHORT)
            for name, is_cancel in (("cancel", True), ("disconnect", False)):
                found[name] = [
                    await _slot(session, url, n, cancel=is_cancel) for n in range(args.repeats)
                ]
        return found

    with tempfile.TemporaryDirectory() as folder:
        config = _config(args, str(Path(folder) / "jobs"), pool)
        with running(config, "local") as server:
            _until_ready(server.url)
            found = asyncio.run(measure(server.url))
    stated: dict[str, Any] = {
        f"{name}_steps": {"median": round(statistics.median(v), 2), "max": round(max(v), 2)}
        for name, v in found.items()
    }
    # The step in hand is finished first; a second one more would show that it was not enough.
    return stated | {
        "step_s": _STEP_S,
        "ok": all(statistics.median(values) <= 1.0 for values in found.values())
        and all(max(values) < 2.0 for values in found.values()),
    }


async def _replicas(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(f"{url}/v1/models") as answer:
        (model,) = (await answer.json())["data"]
    return sum(pool["replicas"] for pool in model["pools"])


async def _until(
    session: aiohttp.ClientSession, url: str, wanted: int, within_s: float
) -> float | None:
    """Seconds until so many samplers answer; None when they do not in time."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        if await _replicas(session, url) == wanted:
            return round(time.monotonic() - began, 1)
        await asyncio.sleep(0.5)
    return None


async def _zero(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        for number in (1, 2):
            found[f"to_zero_{number}_s"] = await _until(session, url, 0, 120.0)
            began = time.monotonic()
            await _post(session, url, {"text": f"a person walks {number} times"} | _SHORT)
            found[f"from_zero_{number}_s"] = round(time.monotonic() - began, 1)
        found["to_zero_3_s"] = await _until(session, url, 0, 120.0)
        jobs = []
        for number in range(30):
            body = {"text": f"a person jumps {number} times", "num_frames": 30, "num_steps": 20}
            async with session.post(
                f"{url}/v1/motions", json=body, headers={"Prefer": "respond-async"}
            ) as answer:
                jobs.append((await answer.json())["id"])
        found["to_two_s"] = await _until(session, url, 2, 180.0)
        states = []
        for job in jobs:
            state = "queued"
            while state in ("queued", "running"):
                await asyncio.sleep(0.5)
                async with session.get(f"{url}/v1/motions/{job}") as answer:
                    state = (await answer.json())["state"]
            states.append(state)
        found["jobs"] = {state: states.count(state) for state in set(states)}
        found["back_to_zero_s"] = await _until(session, url, 0, 180.0)
    return found


def zero(args: argparse.Namespace) -> dict[str, Any]:
    """To zero and back, twice; then a line of jobs that nobody waits for."""
    from hymotion_ray.engine.serve.server import running

    scale = ScaleConfig(
        min_replicas=0, max_replicas=2, target_queue_s=5.0, up_delay_s=1.0, down_delay_s=5.0
    )
    pool = PoolConfig(rows=1, least_step_s=0.1, scale=scale)
    with tempfile.TemporaryDirectory() as folder:
        config = _config(args, str(Path(folder) / "jobs"), pool)
        with running(config, "local") as server:
            _until_ready(server.url, pools=0)
            found = asyncio.run(_zero(server.url))
    done = found["jobs"] == {"succeeded": 30}
    return found | {"ok": done and None not in found.values()}


def main() -> None:
    """Run one campaign; exit 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["cancel", "zero"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--port", type=int, default=8245)
    args = parser.parse_args()
    found = {"cancel": cancel, "zero": zero}[args.what](args)
    print(json.dumps(found | {"load": round(os.getloadavg()[0], 1)}))
    sys.exit(0 if found["ok"] else 1)


if __name__ == "__main__":
    main()
