"""Do a text encoder and two samplers share one GPU by fractions, and keep their troubles apart?

The full-size network with random weights behind the whole endpoint: HTTP, an encoder replica and
two sampler replicas on one card, each allocator held to its share. The encoder is a stand-in: the
Qwen3 and CLIP code at full width, but of 3 and 2 layers with random weights and a small vocabulary
(36 and 12 as published), so that features have their size and cost less to compute. Stages:

bulk: one `Sampler` alone, 64 prompts x 1 seed; GPU memory of 64 rows of 150 and of 360 frames.
one_by_one, load, saturation: requests one after another; arriving at random (Poisson) at half of
bulk's pace; four times as many at once as a sampler has rows. Latencies are those of
`POST /v1/motions`.
out_of_memory: the second sampler's share lies between what 150 and 360 frames need; under the load
of before it is given 64 clips of 360 frames. It must halve its rows, and no request may fail.

    python benchmarks/bench_serve_gpu.py --out FILE.json          # one GPU, about 130 s
    python benchmarks/bench_serve_gpu.py --out FILE.json --device cpu --tiny

The file holds what is known after every stage; a stage that fails leaves its error there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import torch
from torch import nn

from hymotion_ray.api import Model, load_model
from hymotion_ray.config import Grid, ModelConfig, NetworkConfig, SamplingConfig, TextConfig
from hymotion_ray.config.releases import released_network
from hymotion_ray.config.serve import (
    EncoderConfig,
    HttpConfig,
    JobsConfig,
    PoolConfig,
    QueueConfig,
    RequestLimits,
    ServeConfig,
    ServedModel,
    WarmUpConfig,
)
from hymotion_ray.engine.serve.batcher import Batcher, BatchRules, Item
from hymotion_ray.engine.serve.work import ClipDone, Condition, Work
from hymotion_ray.flow.plan import Row
from hymotion_ray.flow.stepwise import prepare_clip
from hymotion_ray.formats.models.checkpoint import Checkpoint, write_model
from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.text.load import load_token_counter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

ROWS, FRAMES, LONG = 64, 150, 360
ENCODER_SHARE, ROOMY_SHARE = 0.1, 0.5
_CONTEXT_BYTES = 600 * 2**20
"""What `engine.device.cap_gpu_memory` leaves for the CUDA context."""
_WORDS = ("walks", "jumps", "waves", "turns", "kneels", "runs", "bows", "kicks")
_SENTENCE = "a person {} forward, turns around and then jumps up, {} of {}"


@dataclass
class Plan:
    """What is run: full size on a GPU, or a tiny rehearsal."""

    device: str
    tiny: bool
    port: int
    rows: int = ROWS
    steps: int = 50
    seconds: float = 15.0
    requests: int = 12
    found: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0

    @property
    def clients(self) -> int:
        """Requests at once that keep both samplers full, and as many that wait or are encoded."""
        return 4 * self.rows

    @property
    def on_gpu(self) -> bool:
        """Whether there is memory to share."""
        return self.device == "cuda"


def text_of(number: int) -> str:
    """A prompt of its own for every request."""
    return _SENTENCE.format(_WORDS[number % 8], number, "all")


def make_models(plan: Plan, folder: Path) -> dict[str, Any]:
    """Random weights on disk: the network in the card's format, Qwen3 and CLIP as stand-ins."""
    from tiny_models import save_clip, save_qwen3

    hidden, width = (32, 24) if plan.tiny else (4096, 768)
    save_qwen3(folder / "qwen3", hidden=hidden, head_dim=8 if plan.tiny else 128)
    save_clip(folder / "clip", hidden=width)
    network = released_network("1.0")
    if plan.tiny:
        network = NetworkConfig(
            feat_dim=32, num_layers=3, num_heads=2, ctxt_input_dim=hidden, vtxt_input_dim=width,
            mask_mode="narrowband", time_factor=1000.0, apply_rope_to_single_branch=False,
        )  # fmt: skip
    config = ModelConfig(
        network=network, name="random", licence="none", text=TextConfig(kind="qwen_clip"),
        sampling=SamplingConfig(num_steps=plan.steps, guidance_scale=5.0),
    )  # fmt: skip
    with torch.device(plan.device):
        weights = MotionMMDiT(network, config.train_frames)
        for name, parameter in weights.named_parameters():
            if "norm" not in name:
                nn.init.normal_(parameter, std=0.02)
    kept = torch.bfloat16 if plan.on_gpu else torch.float32
    mean = torch.zeros(201)
    mean[3:135] = torch.tensor([1.0, 0, 0, 1, 0, 0]).repeat(22)
    checkpoint = Checkpoint(
        config=config,
        network={n: w.to("cpu", kept) for n, w in weights.state_dict().items()},
        null_vtxt_feat=torch.randn(1, 1, width),
        null_ctxt_input=torch.randn(1, 1, hidden),
        mean=mean,
        std=torch.full((201,), 0.1),
    )
    write_model(checkpoint, folder / "model")
    counter = load_token_counter(config.text, folder / "model", llm_path=folder / "qwen3")
    plan.tokens = counter.count_tokens([text_of(10)])[0]
    return {"parameters": sum(w.numel() for w in weights.parameters()), "tokens": plan.tokens}


def bulk(plan: Plan, folder: Path) -> dict[str, Any]:
    """One sampler alone: clips a second, and the memory of short and of long cells."""
    model = load_model(folder / "model", plan.device, "auto")
    sampler = model.new_sampler(Grid.on_device(plan.device, plan.rows))
    network = model.config.network
    generator = torch.Generator().manual_seed(2)
    context = torch.randn(plan.rows, plan.tokens, network.ctxt_input_dim, generator=generator)
    vector = torch.randn(plan.rows, 1, network.vtxt_input_dim, generator=generator)
    length = torch.full((plan.rows,), plan.tokens)
    rows = [Row(n, FRAMES, n) for n in range(plan.rows)]

    def once(sampling: SamplingConfig) -> float:
        began = time.perf_counter()
        sampler.sample(context, vector, length, rows, sampling)
        return time.perf_counter() - began

    once(dataclasses.replace(model.config.sampling, num_steps=4))
    took = statistics.median(once(model.config.sampling) for _ in range(3))
    found: dict[str, Any] = {"clips_per_s": plan.rows / took, "precision": model.precision}
    if plan.on_gpu:
        del sampler
        found["bytes_150"] = memory_of(model, plan, FRAMES)
        found["bytes_360"] = memory_of(model, plan, LONG)
    del model
    torch.cuda.empty_cache()
    return found


def memory_of(model: Model, plan: Plan, frames: int) -> int:
    """Bytes that the allocator takes for full cells of serving, weights included."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    batcher = Batcher(model.new_sampler(Grid.on_device(plan.device, plan.rows)), BatchRules())
    few = dataclasses.replace(model.config.sampling, num_steps=3)
    network = model.config.network
    items = [
        Item(
            clip=prepare_clip(
                batcher.sampler, n, torch.zeros(plan.tokens, network.ctxt_input_dim),
                torch.zeros(network.vtxt_input_dim), frames, n, few,
            ),
            key="",
            deadline=0.0,
            on_end=lambda item, outcome: None,
        )
        for n in range(plan.rows)
    ]  # fmt: skip
    batcher.submit(items)
    while batcher.work():
        pass
    return torch.cuda.max_memory_reserved()


def tight_share(plan: Plan) -> float:
    """A share in which 64 clips of 150 frames fit and of 360 frames do not."""
    if not plan.on_gpu:
        return 0.0
    known, total = plan.found["bulk"], torch.cuda.get_device_properties(0).total_memory
    cap = 0.4 * known["bytes_360"] + 0.6 * known["bytes_150"]
    return round((cap + _CONTEXT_BYTES) / total, 4)


def serve_config(plan: Plan, folder: Path) -> ServeConfig:
    """One encoder, a roomy and a tight sampler, on one card."""
    shares = {"roomy": ROOMY_SHARE, "tight": tight_share(plan)}
    encoder = EncoderConfig(
        gpus=ENCODER_SHARE if plan.on_gpu else 0.0, cpus=0.5,
        llm_path=str(folder / "qwen3"), clip_path=str(folder / "clip"),
    )  # fmt: skip
    pools = tuple(
        PoolConfig(name=name, gpus=share if plan.on_gpu else 0.0, cpus=0.5, rows=plan.rows)
        for name, share in shares.items()
    )
    served = ServedModel(model=str(folder / "model"), encoder=encoder, pools=pools)
    return ServeConfig(
        models=(served,),
        http=HttpConfig(port=plan.port, cpus=0.5, drain_s=5.0),
        limits=RequestLimits(wait_s=120.0),
        queue=QueueConfig(max_wait_s=120.0),
        jobs=JobsConfig(folder=str(folder / "jobs")),
        warm_up=WarmUpConfig(frames=(FRAMES,), tokens=(plan.tokens,)),
    )


@dataclass
class Tally:
    """What clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    latencies: list[tuple[str, float]] = field(default_factory=list)
    """(pool, seconds)."""
    done: int = 0
    errors: list[str] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """Counts and latencies, of all and by pool."""
        pools = sorted({pool for pool, _ in self.latencies})
        return {
            "statuses": dict(self.statuses),
            "latency_s": quantiles([took for _, took in self.latencies]),
            "latency_s_by_pool": {
                name: quantiles([took for pool, took in self.latencies if pool == name])
                for name in pools
            },
            "errors": self.errors[:5],
        }


def quantiles(values: list[float]) -> dict[str, float]:
    """Number, p50 and p95."""
    if len(values) < 2:
        return {"n": len(values), **({"p50": round(values[0], 3)} if values else {})}
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return {"n": len(values), "p50": round(cuts[9], 3), "p95": round(cuts[18], 3)}


class Clients:
    """Requests for one clip each, every one with a prompt of its own."""

    def __init__(self, plan: Plan, url: str, session: aiohttp.ClientSession) -> None:
        self.plan, self.url, self.session = plan, url, session
        self._number = 0

    async def ask(self, tally: Tally) -> None:
        """One request to its end."""
        self._number += 1
        body = {"text": text_of(self._number), "num_frames": FRAMES, "seeds": [self._number]}
        began = time.monotonic()
        try:
            async with self.session.post(f"{self.url}/v1/motions", json=body) as answer:
                job = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            tally.statuses[type(error).__name__] += 1
            return
        tally.statuses[str(answer.status)] += 1
        if answer.status != 200 or job["state"] != "succeeded":
            tally.errors.append(str(job)[:300])
            return
        tally.latencies.append((job["pool"], time.monotonic() - began))
        tally.done += 1

    async def one_by_one(self, number: int) -> Tally:
        """Requests one after another."""
        tally = Tally()
        for _ in range(number):
            await self.ask(tally)
        return tally

    async def arrive(self, rate: float, seconds: float) -> Tally:
        """Requests at random times, `rate` a second; all are waited for."""
        tally, dice, tasks = Tally(), random.Random(0), []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            tasks.append(asyncio.create_task(self.ask(tally)))
            await asyncio.sleep(dice.expovariate(rate))
        await asyncio.gather(*tasks)
        return tally

    async def saturate(self, number: int, seconds: float) -> tuple[float, Tally]:
        """(clips a second past the first quarter, tally) of `number` clients that ask for ever."""
        tally, until = Tally(), time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < until:
                await self.ask(tally)

        tasks = [asyncio.create_task(client()) for _ in range(number)]
        await asyncio.sleep(seconds / 4)
        first, began = tally.done, time.monotonic()
        await asyncio.sleep(max(0.1, until - time.monotonic()))
        rate = (tally.done - first) / (time.monotonic() - began)
        await asyncio.gather(*tasks)
        return rate, tally


async def provoke(plan: Plan, clients: Clients, rate: float) -> dict[str, Any]:
    """64 clips of 360 frames for the tight sampler alone, under load on both."""
    load = asyncio.create_task(clients.arrive(rate, plan.seconds))
    await asyncio.sleep(2.0)
    big = await asyncio.to_thread(_give_big_work, plan)
    tally = await load
    halved = any("out of memory" in note for note in big["degradations"])
    return {
        "rate_per_s": round(rate, 2),
        "requests": tally.report(),
        "big": big,
        "was_out_of_memory": halved,
        "ok": set(tally.statuses) == {"200"} and not tally.errors and halved == plan.on_gpu,
    }


def _give_big_work(plan: Plan) -> dict[str, Any]:
    """What came of work that does not fit, given past the router to the tight sampler."""
    from ray import serve

    from hymotion_ray.engine.serve.server import APP_NAME

    encoder = serve.get_deployment_handle("Encoder", APP_NAME)
    condition: Condition = encoder.encode.remote(text_of(0)).result(timeout_s=30)
    work = Work(
        id="big", key="big", text=text_of(0), condition=condition, num_frames=LONG,
        seeds=tuple(range(plan.rows)), num_steps=min(10, plan.steps), guidance_scale=5.0,
        budget_s=1.0,
    )  # fmt: skip
    pool = serve.get_deployment_handle("Sampler-tight", APP_NAME).options(stream=True)
    began = time.monotonic()
    clips = [m for m in pool.render.remote(work) if isinstance(m, ClipDone)]
    return {
        "clips": len(clips),
        "failed": [clip.error for clip in clips if clip.npz is None][:3],
        "degradations": sorted({str(clip.info.get("degradations")) for clip in clips}),
        "seconds": round(time.monotonic() - began, 2),
    }


def gpu_now() -> dict[str, Any]:
    """Memory in use on the whole card, and whose it is."""
    query = ["nvidia-smi", "--query-gpu=name,memory.used,utilization.gpu", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return {"gpu": said.stdout.strip()}
    return {}


def serving(plan: Plan, folder: Path, stage: Callable[..., Any]) -> None:
    """The endpoint and what is asked of it."""
    from hymotion_ray.engine.serve.server import running

    config = serve_config(plan, folder)
    began = time.monotonic()
    with running(config, "local") as server:
        while not (state := server.ready())[0]:
            if time.monotonic() - began > 240:
                raise TimeoutError(state[1])
            time.sleep(0.2)
        shares = {pool.name: pool.gpus for pool in config.models[0].pools}
        start = {"seconds_to_ready": round(time.monotonic() - began, 1), "gpu_shares": shares}
        stage("start", lambda: start | gpu_now())
        asyncio.run(_ask_all(plan, server.url, stage))


async def _ask_all(plan: Plan, url: str, stage: Callable[..., Any]) -> None:
    timeout, connector = aiohttp.ClientTimeout(total=300), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        clients = Clients(plan, url, session)
        alone = plan.found.get("bulk", {}).get("clips_per_s", 2.0)

        async def one_by_one() -> dict[str, Any]:
            return (await clients.one_by_one(plan.requests)).report()

        async def load() -> dict[str, Any]:
            tally = await clients.arrive(alone / 2, plan.seconds)
            return {"rate_per_s": round(alone / 2, 2), **tally.report(), **gpu_now()}

        async def saturation() -> dict[str, Any]:
            rate, tally = await clients.saturate(plan.clients, plan.seconds)
            return {
                "clients": plan.clients,
                "clips_per_s": round(rate, 2),
                "of_bulk": round(rate / alone, 3),
                **tally.report(),
            }

        async def out_of_memory() -> dict[str, Any]:
            return await provoke(plan, clients, alone / 4)

        for part in (one_by_one, load, saturation, out_of_memory):
            await stage(part.__name__, part)


def main() -> None:
    """Run the stages, writing the file after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="a small network, to rehearse")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--port", type=int, default=8244)
    args = parser.parse_args()
    plan = Plan(args.device, args.tiny, args.port, seconds=args.seconds)
    if args.tiny:
        plan.rows, plan.steps = 4, 6
    began, found = time.monotonic(), plan.found
    found["command"] = " ".join(["python", "benchmarks/bench_serve_gpu.py", *sys.argv[1:]])
    found["encoder"] = "stand-in: Qwen3 of 3 layers and CLIP of 2, full width, random weights"

    def write() -> None:
        found["seconds_in_all"] = round(time.monotonic() - began, 1)
        found["load_average"] = round(os.getloadavg()[0], 1)
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def stage(name: str, run: Callable[[], Any]) -> Any:
        if asyncio.iscoroutinefunction(run):
            return _async_stage(name, run, found, write)
        try:
            found[name] = run()
        except Exception as error:  # noqa: BLE001 - the other stages still say something
            found[name] = {"error": f"{error!r}"[:500], "where": traceback.format_exc()[-1500:]}
        write()
        return None

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stage("models", lambda: make_models(plan, folder))
        stage("bulk", lambda: bulk(plan, folder))
        stage("serving", lambda: serving(plan, folder, stage))
    write()


async def _async_stage(
    name: str, run: Callable[[], Any], found: dict[str, Any], write: Callable[[], None]
) -> None:
    try:
        found[name] = await run()
    except Exception as error:  # noqa: BLE001 - the other stages still say something
        found[name] = {"error": f"{error!r}"[:500], "where": traceback.format_exc()[-1500:]}
    write()


if __name__ == "__main__":
    main()
