"""How much memory and time do sampling and training take, beside what the planner says?

    python benchmarks/bench_memory.py --out benchmarks/results/memory-h200-DATE.json
    python benchmarks/bench_memory.py --parts capped --budget-s 230 --out FILE.json
    python benchmarks/bench_memory.py --device cpu --tiny --out FILE.json

Full-size networks of random weights, a few Euler steps after a warm-up of the same shape; then
every single-card preset under an allocator capped to that card; then training steps. One record a
configuration, written at once; what fails is recorded and the rest goes on. Every second record is
for `fit_planning.py` to fit, the others to check the fit. Record sizes are bytes.

A preset's record says whether its largest cell `ran`, `ran degraded` (with fewer rows, halved after
each out-of-memory, as a render's stage halves them) or ended `out of memory` with one row.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from memory_meter import Meter
from torch import Tensor

from hymotion_ray.config import Grid, ModelConfig, NetworkConfig, SamplingConfig
from hymotion_ray.config.grid import GPU_TEXT_ROWS, GridCell
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.config.releases import TRAIN_FRAMES, released_network
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.fused.choose import fused_or_plain
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.memory import GIB, sampling_memory
from hymotion_ray.planning.presets import CARD_GB, card_preset
from hymotion_ray.planning.speed import sampling_seconds, training_seconds
from hymotion_ray.planning.training_memory import training_memory

MIB = 2**20
TINY = NetworkConfig(
    feat_dim=64,
    num_layers=3,
    num_heads=4,
    ctxt_input_dim=48,
    vtxt_input_dim=24,
    mask_mode="narrowband",
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One configuration of sampling."""

    model: str = "1.0"
    precision: str = "bfloat16"
    rows: int = 16
    num_frames: int = 150
    num_tokens: int = 48
    seeds: int = 1
    window_mib: int = 1536
    guidance: bool = True
    num_steps: int = 5
    text_rows: int = GPU_TEXT_ROWS


BFLOAT16_SHAPES = (
    {"rows": 64},
    {"rows": 1},
    {"rows": 4},
    {"rows": 16},
    {"rows": 32},
    {"rows": 8},
    {"rows": 2},
    {"rows": 64, "seeds": 4},
    {"rows": 32, "num_frames": 360},
    {"rows": 64, "num_frames": 60},
    {"rows": 16, "num_frames": 360},
    {"rows": 64, "num_frames": 240, "num_tokens": 64},
    {"rows": 16, "num_tokens": 128},
    {"rows": 64, "num_tokens": 16},
    {"rows": 4, "num_frames": 360, "num_tokens": 128},
    {"rows": 32, "num_tokens": 96, "window_mib": 512},
    {"rows": 64, "window_mib": 256},
    {"rows": 16, "window_mib": 64, "num_tokens": 32},
    {"rows": 32, "guidance": False},
    {"rows": 64, "num_frames": 360, "guidance": False},
    {"rows": 4, "seeds": 4},
    {"rows": 48, "num_frames": 90, "num_tokens": 32},
    {"rows": 64, "num_frames": 360, "num_tokens": 64, "num_steps": 3},
    {"rows": 1, "num_frames": 360, "num_tokens": 16},
    {"rows": 8, "num_frames": 240, "text_rows": 8},
    {"rows": 4, "text_rows": 32, "num_tokens": 96},
)
LITE_SHAPES = (
    {"rows": 64},
    {"rows": 1},
    {"rows": 16, "num_frames": 360},
    {"rows": 32, "num_tokens": 96},
    {"rows": 64, "window_mib": 256, "seeds": 4},
    {"rows": 8, "num_frames": 240, "guidance": False},
)
FLOAT32_SHAPES = (
    {"rows": 1},
    {"rows": 16},
    {"rows": 4, "num_frames": 360},
    {"rows": 8, "num_tokens": 96, "num_frames": 60},
)


def sampling_shapes(model: str, precision: str) -> list[Shape]:
    """The configurations of one network in one precision."""
    if precision == "float32":
        found = FLOAT32_SHAPES[: 2 if model == "lite" else None]
        return [Shape(model=model, precision=precision, num_steps=3, **s) for s in found]
    shapes = BFLOAT16_SHAPES if model == "1.0" else LITE_SHAPES
    return [Shape(model=model, precision=precision, **s) for s in shapes]


TRAINING = (
    ("1.0", 16, 360, {}),
    ("1.0", 4, 360, {}),
    ("1.0", 16, 180, {"attention": "dense"}),
    ("1.0", 16, 360, {"gradient_checkpointing": True}),
    ("1.0", 32, 180, {"gradient_checkpointing": True}),
    ("1.0", 16, 360, {"lora_rank": 16}),
    ("1.0", 32, 180, {"lora_rank": 16}),
    ("lite", 32, 360, {}),
    ("lite", 8, 360, {"gradient_checkpointing": True}),
    ("lite", 16, 180, {}),
)
"""Model, rows, frames and switches; precision is bfloat16."""


class Book:
    """The results file: written after every record."""

    def __init__(self, path: Path, about: dict[str, Any], budget_s: float) -> None:
        self.path = path
        self.document: dict[str, Any] = {**about, "skipped": [], "records": []}
        self._end = time.monotonic() + budget_s

    def expect(self, kind: str, inputs: list[dict[str, Any]]) -> None:
        """Write what is to come as skipped, which it stays where the process is ended before."""
        self.document["skipped"] += [{"kind": kind, "inputs": one} for one in inputs]
        self.save()

    def add(self, kind: str, inputs: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
        """Measure one configuration, unless the time is up; an error becomes its record."""
        skipped = {"kind": kind, "inputs": inputs}
        if skipped not in self.document["skipped"]:
            self.document["skipped"].append(skipped)
        if time.monotonic() > self._end:
            self.save()
            return
        same = sum(record["kind"] == kind for record in self.document["records"])
        record = {"kind": kind, "half": ("fit", "check")[same % 2], "inputs": inputs}
        start = time.monotonic()
        try:
            record |= measure()
        except Exception as error:  # noqa: BLE001 - recorded, the rest goes on
            record["error"] = f"{type(error).__name__}: {error}"[:500]
        record["wall_s"] = round(time.monotonic() - start, 2)
        self.document["skipped"].remove(skipped)
        self.document["records"].append(record)
        self.save()
        click.echo(json.dumps(record), err=True)

    def save(self) -> None:
        """Write what there is."""
        self.path.write_text(json.dumps(self.document, indent=1) + "\n", encoding="utf-8")


def network_of(model: str, is_tiny: bool) -> NetworkConfig:
    """The shape of a released network, or a tiny one in its place."""
    return TINY if is_tiny else released_network(model)


def measure_sampling(
    network: Any,
    config: NetworkConfig,
    shape: Shape,
    meter: Meter,
    weights: int,
    num_timed: int = 3,
) -> dict[str, Any]:
    """Peaks of a new sampler's calls, median seconds of the later ones, and the planner's figures.

    `network` is as samplers use it and holds `weights` bytes.
    """
    cell = GridCell(rows=shape.rows, frames=shape.num_frames, tokens=shape.num_tokens)
    grid = dataclasses.replace(Grid.of_one(cell), text_rows=shape.text_rows)
    num_prompts = -(-shape.rows // shape.seeds)
    generator = torch.Generator().manual_seed(2)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    given = (
        normal(num_prompts, shape.num_tokens, config.ctxt_input_dim),
        normal(num_prompts, 1, config.vtxt_input_dim),
        torch.full((num_prompts,), shape.num_tokens),
    )
    rows = [Row(i // shape.seeds, shape.num_frames, i) for i in range(shape.rows)]
    sampling = SamplingConfig(
        num_steps=shape.num_steps, guidance_scale=5.0 if shape.guidance else 1.0
    )
    meter.start()
    before = meter.held()
    held: list[int] = []
    with meter.watch():
        sampler = Sampler(
            network,
            null_vector=normal(1, 1, config.vtxt_input_dim),
            null_context=normal(1, 1, config.ctxt_input_dim),
            train_frames=TRAIN_FRAMES,
            grid=grid,
            text_window_bytes=shape.window_mib * MIB,
        )

        def call(on_step: Callable[[int, int], None] | None = None) -> float:
            start = time.perf_counter()
            sampler.sample(*given, rows, sampling, on_step=on_step, check=False)
            meter.wait()
            return time.perf_counter() - start

        first = call(lambda done, total: held.append(meter.held()))
        timed = [call() for _ in range(num_timed)]
    seconds = statistics.median(timed)
    found: dict[str, Any] = meter.read()
    other = before - weights if meter.is_gpu else -weights
    peak = found["peak_allocated"] - other
    found |= {
        "weights": weights,
        "key_value_cache": max(held) - other - weights,
        "activations": max(0, peak - max(held) + other),
        "total": max(peak, found["kept_reserved"] - other) + found.get("context", 0),
        "first_call_s": round(first, 4),
        "timed_s": [round(one, 4) for one in timed],
        "seconds": round(seconds, 4),
        "clips_per_s": round(shape.rows / seconds, 3),
    }
    predicted = sampling_memory(
        config,
        rows=shape.rows,
        num_frames=shape.num_frames,
        num_tokens=shape.num_tokens,
        seeds=shape.seeds,
        num_steps=shape.num_steps,
        guidance=shape.guidance,
        precision=shape.precision,  # type: ignore[arg-type]
        window_bytes=shape.window_mib * MIB,
        text_rows=shape.text_rows,
    )
    took = sampling_seconds(
        config,
        load_catalogue().gpu("H200"),
        rows=shape.rows,
        num_frames=shape.num_frames,
        num_tokens=shape.num_tokens,
        seeds=shape.seeds,
        evaluations=shape.num_steps,
        null_evaluations=None if shape.guidance else 0,
        precision=shape.precision,  # type: ignore[arg-type]
        text_rows=shape.text_rows,
    )
    planned = {"seconds": round(took, 4), "clips_per_s": round(shape.rows / took, 3)}
    return {"predicted": _plain(predicted) | planned, "measured": found}


def _plain(memory: Any) -> dict[str, Any]:
    return dataclasses.asdict(memory) | {"total": memory.total}


def random_network(config: NetworkConfig, device: torch.device) -> MotionMMDiT:
    """A network of random weights in fp32, made on the device."""
    torch.manual_seed(0)
    with device:
        network = MotionMMDiT(config, TRAIN_FRAMES)
    return network.requires_grad_(False).eval()


CAPPED_STEPS = 20
"""Enough for the windows of text rows to turn over several times, as in a whole clip's steps."""


def capped_cards(model: str, config: NetworkConfig) -> Iterator[tuple[Shape, dict[str, Any]]]:
    """The largest cell that each card's preset allows, and the preset; the smallest card first."""
    for gb in CARD_GB if model == "1.0" else CARD_GB[:5]:
        preset = card_preset(gb, config)
        shape = Shape(
            model=model,
            rows=preset.rows,
            num_frames=preset.max_frames,
            num_tokens=preset.max_tokens,
            window_mib=preset.window_bytes // MIB,
            num_steps=CAPPED_STEPS,
        )
        yield shape, {"card_gb": gb, **dataclasses.asdict(preset)}


def measure_capped(
    shape: Shape,
    preset: dict[str, Any],
    meter: Meter,
    measure: Callable[[Shape], dict[str, Any]],
) -> dict[str, Any]:
    """`shape`, or what of it fits, with torch's allocator held to what the card leaves it.

    `cap_bytes` is what the allocator may take, None where there is none; `ratio` is the planner's
    figure over the measured one.
    """
    cap = None
    if meter.is_gpu:
        # Whatever CUDA's context takes is not torch's, here as on that card.
        context = int(fitted().memory.context_gib * GIB)
        total = torch.cuda.get_device_properties(0).total_memory
        cap = min(total, preset["sampler_bytes"] - context)
        torch.cuda.set_per_process_memory_fraction(cap / total)
    found: dict[str, Any] = {"cap_bytes": cap, "ran_out": []}
    try:
        while "measured" not in found:
            try:
                found |= measure(shape)
            except torch.OutOfMemoryError as error:
                found["ran_out"].append({"rows": shape.rows, "error": str(error)[:300]})
            if "measured" in found or shape.rows == 1:
                break
            shape = dataclasses.replace(shape, rows=shape.rows // 2)
    finally:
        if meter.is_gpu:
            torch.cuda.set_per_process_memory_fraction(1.0)
    if "measured" not in found:
        return {"verdict": "out of memory", **found}
    planned, measured = found["predicted"], found["measured"]
    ratio = {
        "memory": round(planned["total"] / measured["total"], 3),
        "clips_per_s": round(planned["clips_per_s"] / measured["clips_per_s"], 3),
    }
    verdict = "ran degraded" if found["ran_out"] else "ran"
    return {"verdict": verdict, "rows": shape.rows, **found, "ratio": ratio}


def measure_training(
    config: NetworkConfig,
    rows: int,
    num_frames: int,
    switches: ParallelConfig,
    meter: Meter,
) -> dict[str, Any]:
    """Two passes a step, as where gradients add up, with the running mean beside the weights."""
    from hymotion_ray.engine.train.objective import FlowModel
    from hymotion_ray.engine.train.parallel import parallelise
    from hymotion_ray.engine.train.running_mean import RunningMean
    from hymotion_ray.engine.train.tune_job import made_up_inputs

    num_tokens, num_steps = 36, 3
    model = ModelConfig(network=config)
    meter.start()
    with meter.watch():
        torch.manual_seed(0)
        with meter.device:
            flow = FlowModel(model, torch.ones(201, dtype=torch.bool))
        parallel = parallelise(flow, switches, meter.device)
        mean = RunningMean(parallel.parameters, 0.999)
        optimizer = parallel.make_optimizer(1e-5, (0.9, 0.95), 0.01)
        inputs = [x.to(meter.device) for x in made_up_inputs(model, rows, num_frames, num_tokens)]
        seconds = []
        for step in range(num_steps):
            meter.wait()
            start = time.perf_counter()
            optimizer.zero_grad()
            for _ in range(2):
                parallel.backward(parallel.module(*inputs).mean())
            parallel.clip_grad_norm(1.0)
            parallel.step()
            mean.update(step + 1)
            meter.wait()
            seconds.append((time.perf_counter() - start) / 2)
    held = parallel.held()
    found: dict[str, Any] = meter.read()
    trained = sum(p.numel() * p.element_size() for p in parallel.parameters.values())
    fixed = held.parameters + held.gradients + held.optimizer + trained
    del flow, parallel, mean, optimizer
    found |= {
        "weights": held.parameters,
        "gradients": held.gradients,
        "optimizer": held.optimizer + trained,
        "activations": found["peak_allocated"] - fixed,
        "total": found["peak_allocated"] + found.get("context", 0),
        "first_call_s": round(seconds[0], 4),
        "seconds": round(min(seconds[1:]), 4),
        "clips_per_s": round(rows / min(seconds[1:]), 3),
    }
    predicted = training_memory(
        config, switches, rows=rows, num_frames=num_frames, num_tokens=num_tokens
    )
    seconds_planned = training_seconds(
        config,
        load_catalogue().gpu("H200"),
        switches,
        rows=rows,
        num_frames=num_frames,
        num_tokens=num_tokens,
    )
    took = {"seconds": round(seconds_planned, 4)}
    return {"predicted": _plain(predicted) | took, "measured": found}


@click.command()
@click.option("--device", "device_name", type=click.Choice(["cuda", "cpu"]), default="cuda")
@click.option("--tiny", is_flag=True, help="A tiny network in place of each: to try the script.")
@click.option("--parts", default="sampling,capped,training", show_default=True)
@click.option("--budget-s", default=110.0, show_default=True, help="No new record after this.")
@click.option("--commit", "commit_name", help="The commit measured; without: asked of git.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The JSON file.")
def main(
    device_name: str, tiny: bool, parts: str, budget_s: float, commit_name: str | None, out: Path
) -> None:
    """Measure, writing the file after every configuration."""
    device = torch.device(device_name)
    meter = Meter(device)
    about = {
        "schema": 1,
        "device": torch.cuda.get_device_name() if meter.is_gpu else "cpu",
        "tiny": tiny,
        "command": shlex.join(["python", "benchmarks/bench_memory.py", *sys.argv[1:]]),
        "commit": commit_name or commit(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
    }
    book = Book(out, about, budget_s)
    wanted = parts.split(",")
    for model in ("1.0", "lite") if {"sampling", "capped"} & set(wanted) else ():
        run_samplers(book, meter, model, tiny, wanted)
    if "training" in wanted:
        run_training(book, meter, tiny)
    book.save()
    failed = sum("error" in record for record in book.document["records"])
    click.echo(
        f"{len(book.document['records'])} records, {failed} failed, "
        f"{len(book.document['skipped'])} skipped: {out}"
    )


def run_samplers(book: Book, meter: Meter, model: str, is_tiny: bool, parts: list[str]) -> None:
    """Sampling records of one model; its network is built once and changes precision."""
    config = network_of(model, is_tiny)
    meter.start()
    empty = meter.held()
    network = random_network(config, meter.device)
    for precision, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        if precision == "float32" and "sampling" not in parts:
            continue
        network = network.to(dtype)
        used = fused_or_plain(network)
        meter.start()
        weights = meter.held() - empty if meter.is_gpu else _parameter_bytes(network)
        measure = partial(measure_sampling, used, config, meter=meter, weights=weights)
        for shape in sampling_shapes(model, precision) if "sampling" in parts else ():
            if is_tiny:
                shape = dataclasses.replace(
                    shape, rows=min(shape.rows, 4), num_steps=2, text_rows=8
                )
            book.add("sampling", dataclasses.asdict(shape), partial(measure, shape))
        if precision == "bfloat16" and "capped" in parts:
            run_capped(book, meter, list(capped_cards(model, config)), measure, is_tiny)


def run_capped(
    book: Book,
    meter: Meter,
    cards: list[tuple[Shape, dict[str, Any]]],
    measure: Callable[[Shape], dict[str, Any]],
    is_tiny: bool,
) -> None:
    """Records of one model's presets."""
    if is_tiny:
        small = {"rows": 2, "num_steps": 2, "text_rows": 8}
        cards = [(dataclasses.replace(shape, **small), preset) for shape, preset in cards]
    inputs = [dataclasses.asdict(shape) | {"preset": preset} for shape, preset in cards]
    book.expect("capped", inputs)
    for one, (shape, preset) in zip(inputs, cards, strict=True):
        book.add("capped", one, partial(measure_capped, shape, preset, meter, measure))


def _parameter_bytes(network: MotionMMDiT) -> int:
    return sum(p.numel() * p.element_size() for p in network.parameters())


def run_training(book: Book, meter: Meter, is_tiny: bool) -> None:
    """All training records."""
    for model, rows, num_frames, given in TRAINING:
        switches = ParallelConfig(precision="bfloat16", **given)  # type: ignore[arg-type]
        if is_tiny:
            rows = min(rows, 2)
            if given.get("lora_rank"):
                switches = dataclasses.replace(switches, lora_rank=2)
        inputs = {"model": model, "rows": rows, "num_frames": num_frames, "num_tokens": 36, **given}
        measure = partial(
            measure_training, network_of(model, is_tiny), rows, num_frames, switches, meter
        )
        book.add("training", inputs, measure)


def commit() -> str:
    """The commit measured, or `unknown` outside a checkout."""
    import subprocess

    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
