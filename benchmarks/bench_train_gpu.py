"""How fast does one GPU train the 1.0B network, in how much memory, and what fits which card?

    python benchmarks/bench_train_gpu.py --out FILE.json                    speed
    python benchmarks/bench_train_gpu.py --caps --out FILE.json             memory under a cap
    python benchmarks/bench_train_gpu.py --device cpu --tiny --out FILE.json     to try the script

Random weights of the released 1.0B shape, clips of 360 frames with 36 text tokens (padded to 40, as
batches are), bfloat16, whole steps as the training loop takes them: forward, backward, clipping,
AdamW, running mean. MFU counts the work really needed: 36 tokens, attention inside the band, and
nothing twice. FILE is written after every configuration; one that fails is recorded and skipped,
and those that no longer fit into `--seconds` are left out. The caps part trains, on one card, as
many rows as `engine/train/fit.py` computes for a smaller one, with the allocator held to that
card's memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hymotion_ray.config import ModelConfig
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.config.releases import released_network
from hymotion_ray.config.training import static_model
from hymotion_ray.engine.train.fit import fit, most_rows
from hymotion_ray.engine.train.mfu import train_flops
from hymotion_ray.engine.train.micro_batch import MicroBatch
from hymotion_ray.engine.train.objective import FlowModel
from hymotion_ray.engine.train.parallel import parallelise
from hymotion_ray.engine.train.passes import make_passes
from hymotion_ray.engine.train.running_mean import RunningMean
from hymotion_ray.engine.train.step_clock import StepClock
from hymotion_ray.engine.train.tune_job import made_up_inputs
from hymotion_ray.planning.fitted import fitted

NUM_FRAMES, NUM_TOKENS, PADDED_TOKENS = 360, 36, 40
GIB = 2**30
CARDS = {"A10 24 GB": 22.0, "A100 40 GB": 39.0, "A100 80 GB": 79.0}
"""GiB that a card has for use."""
LOW = ParallelConfig(precision="bfloat16")


@dataclass(frozen=True)
class Way:
    """One configuration."""

    name: str
    rows: int
    config: ParallelConfig
    measure_s: float = 2.0


def speed_ways(sizes: list[int], has_graphs: bool) -> list[Way]:
    """Most telling first: later ones are left out when time is short."""
    compiled = replace(LOW, compile=True)
    graphs = replace(compiled, cuda_graphs=has_graphs)
    ways = [Way("compiled, graph", rows, graphs) for rows in sorted(sizes, reverse=True)]
    ways += [Way("compiled", rows, compiled) for rows in sorted(sizes, reverse=True)]
    ways += [Way("graph", rows, replace(LOW, cuda_graphs=has_graphs)) for rows in sizes]
    ways += [Way("eager", rows, LOW) for rows in sizes]
    ways += [
        Way("compiled, recomputed", rows, replace(compiled, gradient_checkpointing=True))
        for rows in sorted(sizes, reverse=True)
    ]
    ways += [
        Way("eager, recomputed", rows, replace(LOW, gradient_checkpointing=True)) for rows in sizes
    ]
    ways.append(Way("eager, dense mask", sizes[0], replace(LOW, attention="dense")))
    return ways


def make_model(is_tiny: bool) -> ModelConfig:
    """The released shape, or one that a processor can try."""
    if is_tiny:
        return static_model(32, name="try", feat_dim=32, num_layers=3, num_heads=2)
    return ModelConfig(network=released_network("1.0"))


class Trainer:
    """A network with its optimizer and running mean, and the steps of one configuration."""

    def __init__(self, model: ModelConfig, way: Way, device: torch.device, num_frames: int) -> None:
        torch.manual_seed(0)
        with device:
            flow = FlowModel(model, torch.ones(201, dtype=torch.bool))
        for name, parameter in flow.named_parameters():
            if "norm" not in name:
                nn.init.normal_(parameter, std=0.02)
        self.parallel = parallelise(flow, way.config, device)
        self.parallel.make_optimizer(1e-4, (0.9, 0.999), 0.01)
        self.mean = RunningMean(self.parallel.parameters, 0.9999)
        inputs = list(made_up_inputs(model, way.rows, num_frames, PADDED_TOKENS))
        inputs[4] = torch.full((way.rows,), NUM_TOKENS)
        ids = ("made up",) * way.rows
        self.batch = MicroBatch._make((*inputs, torch.ones(way.rows), ids, ())).moved(device)
        self.passes = make_passes(self.parallel, StepClock(device), 1 / way.rows)
        self.steps = 0

    def step(self) -> float:
        """One whole step; returns its loss, so that it has ended."""
        self.passes.clear()
        losses = self.passes(self.batch, is_last=True)
        float(self.parallel.clip_grad_norm(1.0))  # as the loop, which looks whether it is finite
        self.parallel.step()
        self.steps += 1
        self.mean.update(self.steps)
        return float(losses.mean())


def measure(way: Way, args: argparse.Namespace, model: ModelConfig, rate: float) -> dict[str, Any]:
    """Clips a second, MFU and peak memory of one configuration."""
    device = torch.device(args.device)
    began = time.perf_counter()
    trainer = Trainer(model, way, device, args.frames)
    trainer.step()
    first = time.perf_counter() - began
    for _ in range(2):  # the second records a graph
        loss = trainer.step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < way.measure_s and len(seconds) < 40):
        start = time.perf_counter()
        trainer.step()
        seconds.append(time.perf_counter() - start)
    pace = statistics.median(seconds)
    flops = train_flops(model.network, way.rows, args.frames, NUM_TOKENS)
    row: dict[str, Any] = {
        "way": way.name,
        "rows": way.rows,
        "clips_per_s": round(way.rows / pace, 2),
        "mfu": round(flops / pace / rate, 4) if rate else None,
        "tflop_per_s": round(flops / pace / 1e12, 2),
        "step_ms": round(1e3 * pace, 2),
        "step_ms_range": [round(1e3 * min(seconds), 2), round(1e3 * max(seconds), 2)],
        "steps": len(seconds),
        "first_step_s": round(first, 2),
        "loss": round(loss, 5),
        "config": {k: v for k, v in asdict(way.config).items() if v != getattr(LOW, k)},
    }
    if device.type == "cuda":
        row["peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
    if args.profile and way.name.startswith(args.profile):
        row["parts_ms"] = parts(trainer)
        row["kernels_ms"] = kernels(trainer)
    return row


def parts(trainer: Trainer) -> dict[str, float]:
    """Milliseconds of a step's parts, each waited for."""
    found: dict[str, float] = {}

    def note(name: str, start: float) -> float:
        if trainer.parallel.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        found[name] = round(1e3 * (now - start), 2)
        return now

    at = time.perf_counter()
    trainer.passes.clear()
    at = note("clear", at)
    trainer.passes(trainer.batch, is_last=True)
    at = note("pass", at)
    trainer.parallel.clip_grad_norm(1.0)
    at = note("clip", at)
    trainer.parallel.step()
    at = note("adamw", at)
    trainer.mean.update(10)
    note("running mean", at)
    return found


def kernels(trainer: Trainer) -> list[list[Any]]:
    """The longest kernels of one step: [name, ms, calls]."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        trainer.step()
    averages = profiler.key_averages()
    attribute = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    rows = sorted(averages, key=lambda e: -getattr(e, attribute))[:40]
    return [[e.key[:90], round(getattr(e, attribute) / 1e3, 3), e.count] for e in rows]


def matrix_rate(device: torch.device) -> float:
    """FLOP/s of an 8192 cubed bf16 product: the ceiling counted against; 0 on a processor."""
    if device.type != "cuda":
        return 0.0
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            a @ b
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return float(10 * 2 * 8192**3 / statistics.median(seconds[1:]))


def cap_ways(
    model: ModelConfig, args: argparse.Namespace
) -> Iterator[tuple[str, float, Way, float]]:
    """(card, its GiB, what to train, computed GiB): the most rows that are computed to fit."""
    again = replace(LOW, gradient_checkpointing=True)
    settings = {
        "all weights, recomputed": again,
        "all weights": LOW,
        "lora_rank 16, recomputed": replace(again, lora_rank=16),
        "lora_rank 16": replace(LOW, lora_rank=16),
    }
    for name, config in settings.items():
        for card, size in CARDS.items():
            most = most_rows(model.network, config, int(size * GIB), num_frames=args.frames)
            rows = min(most, args.most_rows)
            needed = fit(model.network, config, rows=max(1, rows), num_frames=args.frames)
            yield card, size, Way(name, rows, config, 0.0), needed.total / GIB


def measure_cap(
    card: str, size: float, way: Way, computed: float, args: argparse.Namespace, model: ModelConfig
) -> dict[str, Any]:
    """Three steps with the allocator held to a card's memory, less what CUDA takes itself."""
    row: dict[str, Any] = {"card": card, "way": way.name, "rows": way.rows}
    row["computed_gib"] = round(computed, 2)
    if not way.rows:
        return row | {"fits": None}
    if args.device == "cuda":
        own = fitted().memory.context_gib  # CUDA's own, outside of the allocator
        total = torch.cuda.get_device_properties(0).total_memory / GIB
        torch.cuda.set_per_process_memory_fraction(min(1.0, (size - own) / total))
    trainer = Trainer(model, way, torch.device(args.device), args.frames)
    for _ in range(3):
        trainer.step()
    row["fits"] = True
    if args.device == "cuda":
        row["peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
        row["reserved_gib"] = round(torch.cuda.max_memory_reserved() / GIB, 2)
    return row


def release() -> None:
    """Hand memory back before the next configuration."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def main() -> None:
    """Measure one configuration after another; FILE holds what there is at any time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small network and short clips")
    parser.add_argument("--caps", action="store_true", help="memory under a card's cap")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--only", nargs="+", help="names of configurations")
    parser.add_argument("--most-rows", type=int, default=128, help="rows tried under a cap")
    parser.add_argument("--seconds", type=float, default=150.0, help="for the whole script")
    parser.add_argument("--profile", default="compiled", help="ways that are profiled; '' for none")
    args = parser.parse_args()
    began = time.perf_counter()
    args.frames = 60 if args.tiny else NUM_FRAMES
    if args.tiny:
        args.rows = [2, 4]
        args.most_rows = 4
    model = make_model(args.tiny)
    device = torch.device(args.device)
    rate = matrix_rate(device)
    found: dict[str, Any] = {
        "question": "caps" if args.caps else "speed",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "matrix_tflop_per_s": round(rate / 1e12, 1),
        "command": " ".join(["python", *sys.argv]),
        "rows": [],
    }

    def keep(row: dict[str, Any]) -> None:
        found["rows"].append(row)
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        shown = {k: v for k, v in row.items() if k not in ("kernels_ms", "config")}
        sys.stdout.write(json.dumps(shown) + "\n")
        sys.stdout.flush()

    if args.caps:
        jobs: Iterator[Any] = cap_ways(model, args)
    else:
        jobs = ((way,) for way in speed_ways(args.rows, device.type == "cuda"))
    for job in jobs:
        way = job[2] if args.caps else job[0]
        if args.only and way.name not in args.only:
            continue
        start = time.perf_counter()
        if start - began > args.seconds:
            keep({"way": way.name, "rows": way.rows, "left_out": "no time"})
            continue
        try:
            row = measure_cap(*job, args, model) if args.caps else measure(way, args, model, rate)
        except Exception as error:  # noqa: BLE001 - recorded; the others go on
            first = str(error).strip().splitlines() or [""]
            row = {"way": way.name, "rows": way.rows, "error": type(error).__name__}
            row["said"] = " | ".join(first[:6])[:600]
            if args.caps:
                row |= {"card": job[0], "computed_gib": round(job[3], 2), "fits": False}
        release()
        keep({**row, "seconds": round(time.perf_counter() - start, 1)})


if __name__ == "__main__":
    main()
