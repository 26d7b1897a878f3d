"""What do the layouts that one GPU can run cost in time, and save in memory?

    python benchmarks/bench_layouts.py --out benchmarks/results/layouts-h200-DATE.json
    python benchmarks/bench_layouts.py --device cpu --tiny --out FILE.json

Layer offload beside resident weights (the same plain kernels, and the fused ones where they can
be), also under an allocator capped to a small card; two capped samplers on one card beside one; the
text encoder in int8 beside bf16. Full sizes, random weights. One record a configuration, written at
once; what fails is recorded and the rest goes on. Sizes are bytes. About 50 s on one H200.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
import torch.multiprocessing as mp
from memory_meter import Meter
from torch import Tensor

from hymotion_ray.config import Grid, NetworkConfig, SamplingConfig
from hymotion_ray.config.releases import TRAIN_FRAMES, released_network
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.fused.choose import fused_or_plain
from hymotion_ray.model.offload import LayerOffload
from hymotion_ray.text.int8 import quantise

GIB = 2**30
NUM_FRAMES, NUM_TOKENS, NUM_STEPS = 150, 36, 5
SMALL_CARD_GIB = 3.4
"""What a sampler gets of a card of 4 GB: 3.6 GiB usable, less the context."""
TINY = NetworkConfig(
    feat_dim=64,
    num_layers=6,
    num_heads=4,
    ctxt_input_dim=48,
    vtxt_input_dim=24,
    mask_mode="narrowband",
)


def shape_of(tiny: bool) -> NetworkConfig:
    """The network that is measured."""
    return TINY if tiny else released_network("1.0")


def random_network(config: NetworkConfig, device: str) -> MotionMMDiT:
    """Random weights in bf16."""
    torch.manual_seed(0)
    with torch.device(device):
        network = MotionMMDiT(config, TRAIN_FRAMES)
    return network.to(torch.bfloat16).requires_grad_(False).eval()


def sampler_of(network: Any, config: NetworkConfig, rows: int, window: int) -> Sampler:
    """A sampler over any form of the network."""
    generator = torch.Generator().manual_seed(1)
    return Sampler(
        network,
        null_vector=torch.randn(1, 1, config.vtxt_input_dim, generator=generator),
        null_context=torch.randn(1, 1, config.ctxt_input_dim, generator=generator),
        train_frames=TRAIN_FRAMES,
        grid=Grid(rows=rows, text_rows=64),
        text_window_bytes=window,
    )


def run(sampler: Sampler, config: NetworkConfig, rows: int, steps: int) -> list[Tensor]:
    """`rows` clips, a prompt each."""
    generator = torch.Generator().manual_seed(2)
    context = torch.randn(rows, NUM_TOKENS, config.ctxt_input_dim, generator=generator)
    vector = torch.randn(rows, 1, config.vtxt_input_dim, generator=generator)
    length = torch.full((rows,), NUM_TOKENS)
    asked = [Row(prompt=i, num_frames=NUM_FRAMES, seed=i) for i in range(rows)]
    sampling = SamplingConfig(num_steps=steps)
    return sampler.sample(context, vector, length, asked, sampling, check=False)


def measure(network: Any, config: NetworkConfig, rows: int, meter: Meter) -> dict[str, Any]:
    """Seconds and peak of one call, after one that warms up."""
    sampler = sampler_of(network, config, rows, GIB // 4)
    run(sampler, config, rows, 1)
    meter.start()
    with meter.watch():
        meter.wait()
        began = time.perf_counter()
        latents = run(sampler, config, rows, NUM_STEPS)
        meter.wait()
    seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 4),
        "clips_per_s_at_50_steps": round(rows / seconds * NUM_STEPS / 50, 3),
        **meter.read(),
        "checksum": float(torch.stack(latents).double().sum()),
    }


def offload(tiny: bool, device: str, rows: int, way: str) -> dict[str, Any]:
    """One way to hold the weights: resident, fused, offloaded, or offloaded on a small card."""
    config, place = shape_of(tiny), torch.device(device)
    meter = Meter(place)
    network: Any = random_network(config, device)
    if way == "fused":
        network = fused_or_plain(network)
    elif way != "resident":
        network = LayerOffload(network.cpu(), device)
    is_capped = way == "offloaded, 4 GB card" and device == "cuda"
    if is_capped:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(SMALL_CARD_GIB * GIB / total)
    try:
        found = measure(network, config, rows, meter)
    finally:
        if is_capped:
            torch.cuda.set_per_process_memory_fraction(1.0)
    if isinstance(network, LayerOffload):
        found["weights_resident"] = network.resident_bytes
        found |= bandwidth(network, device)
    return found


def bandwidth(network: LayerOffload, device: str) -> dict[str, Any]:
    """How fast blocks' weights come across when nothing else is to do."""
    if device != "cuda":
        return {}
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in network._visit():
        pass
    torch.cuda.synchronize()
    size = sum(block.num_bytes for block in network._host)
    return {"host_to_device_gb_s": round(size / (time.perf_counter() - began) / 1e9, 2)}


def replicas(tiny: bool, device: str, number: int, rows: int) -> dict[str, Any]:
    """So many samplers at once, each a process capped to its share of the card."""
    context = mp.get_context("spawn")
    barrier, answers = context.Barrier(number), context.Queue()
    processes = [
        context.Process(target=_replica, args=(tiny, device, 1 / number, rows, barrier, answers))
        for _ in range(number)
    ]
    for process in processes:
        process.start()
    found = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(timeout=30)
    wrong = [one for one in found if isinstance(one, str)]
    if wrong:
        raise RuntimeError("; ".join(wrong))
    rate = sum(rows / one["seconds"] * NUM_STEPS / 50 for one in found)
    return {"clips_per_s_at_50_steps": round(rate, 3), "replicas": found}


def _replica(tiny: bool, device: str, share: float, rows: int, barrier: Any, answers: Any) -> None:
    try:
        if device == "cuda":
            torch.cuda.set_per_process_memory_fraction(0.9 * share)
        config = shape_of(tiny)
        network = fused_or_plain(random_network(config, device))
        sampler = sampler_of(network, config, rows, GIB // 2)
        run(sampler, config, rows, NUM_STEPS)
        meter = Meter(torch.device(device))
        meter.start()
        barrier.wait(timeout=60)
        began = time.perf_counter()
        for _ in range(4):
            run(sampler, config, rows, NUM_STEPS)
        meter.wait()
        seconds = (time.perf_counter() - began) / 4
        answers.put({"seconds": round(seconds, 4), **meter.read()})
    except Exception as error:  # noqa: BLE001 - the parent records it
        barrier.abort()
        answers.put(f"{type(error).__name__}: {error}")


def encoder(tiny: bool, device: str, precision: str) -> dict[str, Any]:
    """Qwen3 of the releases' size and random weights: memory and seconds of 16 prompts."""
    from transformers import Qwen3Config, Qwen3Model

    sizes = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
             "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936}  # fmt: skip
    if tiny:
        sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}  # fmt: skip
    config = Qwen3Config(**sizes, head_dim=128, attn_implementation="sdpa")
    meter = Meter(torch.device(device))
    with torch.device("meta"):
        model = Qwen3Model(config)
    model.to(torch.bfloat16).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
        else:
            parameter.data.normal_(std=0.02, generator=generator)
    model.rotary_emb = type(model.rotary_emb)(config).to(device)  # its tables are no weights
    model.requires_grad_(False).eval()
    ids = torch.arange(16 * 64, device=device).view(16, 64) % sizes["vocab_size"]
    with torch.inference_mode():
        exact = model(input_ids=ids).last_hidden_state.float() if precision == "int8" else None
    if precision == "int8":
        quantise(model, torch.bfloat16)
    meter.start()
    seconds = []
    with torch.inference_mode(), meter.watch():
        for _ in range(4):
            meter.wait()
            began = time.perf_counter()
            features = model(input_ids=ids).last_hidden_state.float()
            meter.wait()
            seconds.append(time.perf_counter() - began)
    found = {"seconds_of_16_prompts": round(min(seconds[1:]), 4), **meter.read()}
    if exact is not None:
        found["relative_distance"] = float((features - exact).norm() / exact.norm())
    return found


@click.command()
@click.option("--out", required=True, type=click.Path(dir_okay=False))
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda")
@click.option("--tiny", is_flag=True, help="A tiny network, to try the script.")
def main(out: str, device: str, tiny: bool) -> None:
    """Measure every layout and write one JSON document after each."""
    sizes = (2,) if tiny else (4, 32)
    ways = ("resident", "fused", "offloaded", "offloaded, 4 GB card")
    todo: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        (f"weights {way}, {rows} rows", lambda r=rows, w=way: offload(tiny, device, r, w))  # type: ignore[misc]
        for rows in sizes
        for way in ways
        if rows == sizes[0] or way != "offloaded, 4 GB card"
    ]
    todo += [
        (f"{number} samplers on one card", lambda n=number: replicas(tiny, device, n, sizes[-1]))  # type: ignore[misc]
        for number in (1, 2)
    ]
    todo += [
        (f"encoder in {name}", lambda p=name: encoder(tiny, device, p))  # type: ignore[misc]
        for name in ("bfloat16", "int8")
    ]
    document: dict[str, Any] = {
        "command": "python benchmarks/bench_layouts.py",
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "shape": {"frames": NUM_FRAMES, "tokens": NUM_TOKENS, "steps": NUM_STEPS, "tiny": tiny},
        "records": [],
    }
    began = time.perf_counter()
    for name, work in todo:
        record: dict[str, Any] = {"what": name}
        try:
            record |= work()
        except Exception as error:  # noqa: BLE001 - recorded, and the next one runs
            record["error"] = f"{type(error).__name__}: {error}"[:500]
        record["at_s"] = round(time.perf_counter() - began, 1)
        document["records"].append(record)
        Path(out).write_text(json.dumps(document, indent=1), encoding="utf-8")
        click.echo(json.dumps(record))
        if device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
