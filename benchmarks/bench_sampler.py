"""How much faster is sampling with every exact saving than without any?

Both modes sample the same clips with the same random network, dtype, threads and rows a call, one
mode after the other and again, and their results are compared. On CPU the clock is the process's
own seconds divided by its threads, which neighbours on the machine disturb less than wall time;
elsewhere it is wall time. `--json` ends with one JSON line.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch
from torch import Tensor, nn

from hymotion_ray.config import Grid, NetworkConfig, SamplingConfig
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.flow.work import Work
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.planning.flops import motion_flops, text_flops

NUM_PROMPTS, NUM_SEEDS, NUM_FRAMES = 8, 4, 150
TRAIN_FRAMES, NUM_TOKENS = 360, 128


def network_config(width: int, layers: int) -> NetworkConfig:
    """The released switches at another width."""
    return NetworkConfig(
        feat_dim=width,
        num_layers=layers,
        num_heads=width // 64,
        ctxt_input_dim=256,
        vtxt_input_dim=256,
        mask_mode="narrowband",
        apply_rope_to_single_branch=False,
        time_factor=1000.0,
    )


def random_sampler(config: NetworkConfig, grid: Grid, device: str) -> Sampler:
    """A sampler with random weights."""
    network = MotionMMDiT(config, TRAIN_FRAMES)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.02, generator=generator)
    return Sampler(
        network.to(device),
        null_vector=torch.randn(1, 1, 256, generator=generator),
        null_context=torch.randn(1, 1, 256, generator=generator),
        train_frames=TRAIN_FRAMES,
        grid=grid,
    )


def random_condition() -> tuple[Tensor, Tensor, Tensor]:
    """Eight prompts of 29 to 43 tokens, padded to 128 as the released tool pads them."""
    generator = torch.Generator().manual_seed(1)
    context = torch.randn(NUM_PROMPTS, NUM_TOKENS, 256, generator=generator)
    vector = torch.randn(NUM_PROMPTS, 1, 256, generator=generator)
    return context, vector, torch.arange(29, 29 + 2 * NUM_PROMPTS, 2)


def count_flops(config: NetworkConfig, work: Work) -> int:
    """Operations of all calls that were counted."""
    text = sum(calls * text_flops(config, *shape) for shape, calls in work.text.items())
    motion = sum(calls * motion_flops(config, *shape) for shape, calls in work.motion.items())
    return text + motion


def clock_of(device: str, threads: int) -> Callable[[], float]:
    """Seconds of the process a thread on CPU, seconds of the wall elsewhere."""
    return (lambda: time.process_time() / threads) if device == "cpu" else time.perf_counter


def measure(
    config: NetworkConfig,
    sampler: Sampler,
    num_steps: int,
    repeats: int,
    clock: Callable[[], float],
) -> dict[str, float]:
    """Time both modes in turn; each mode's figure is its fastest run, the least disturbed one."""
    condition, sampling = random_condition(), SamplingConfig(num_steps=num_steps)
    rows = [Row(p, NUM_FRAMES, seed) for p in range(NUM_PROMPTS) for seed in range(NUM_SEEDS)]
    modes = {"shared": sampler.sample, "dense": sampler.sample_dense}
    for mode in modes.values():  # threads, memory and code are warm afterwards
        mode(*condition, rows[: sampler.grid.rows], SamplingConfig(num_steps=1))
    seconds: dict[str, list[float]] = {name: [] for name in modes}
    walls: dict[str, list[float]] = {name: [] for name in modes}
    flops, latents = {}, {}
    for _ in range(repeats):
        for name, mode in modes.items():
            sampler.work.clear()
            start, wall = clock(), time.perf_counter()
            latents[name] = mode(*condition, rows, sampling)
            seconds[name].append(clock() - start)
            walls[name].append(time.perf_counter() - wall)
            flops[name] = count_flops(config, sampler.work)
    shared, dense = min(seconds["shared"]), min(seconds["dense"])
    got, want = torch.stack(latents["shared"]), torch.stack(latents["dense"])
    rate_ratio = flops["shared"] / shared / (flops["dense"] / dense)
    return {
        "speedup_vs_dense": round(dense / shared, 3),
        "wall_speedup_vs_dense": round(min(walls["dense"]) / min(walls["shared"]), 3),
        "shared_s": round(shared, 3),
        "dense_s": round(dense, 3),
        "shared_gflop": round(flops["shared"] / 1e9, 1),
        "dense_gflop": round(flops["dense"] / 1e9, 1),
        "shared_gflop_per_s": round(flops["shared"] / shared / 1e9, 1),
        "dense_gflop_per_s": round(flops["dense"] / dense / 1e9, 1),
        "flop_rate_ratio": round(rate_ratio, 3),
        "relative_difference": float((got - want).norm() / want.norm()),
        "clips_per_s_at_50_steps": round(len(rows) / (shared * 50 / num_steps), 3),
    }


def commit() -> str:
    """The commit measured, or `unknown` outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


@click.command()
@click.option("--quick", is_flag=True, help="A narrow network and one step: under a minute.")
@click.option("--width", default=512, show_default=True, help="Width of the network.")
@click.option("--layers", default=9, show_default=True, help="Blocks of the network.")
@click.option("--steps", default=4, show_default=True, help="Euler steps.")
@click.option("--rows", default=Grid().rows, show_default=True, help="Clips a call.")
@click.option("--repeats", default=3, show_default=True, help="Runs of each mode.")
@click.option("--threads", default=1, show_default=True, help="CPU threads; one is the steadiest.")
@click.option("--device", default="cpu", show_default=True, help="Torch device.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line.")
def main(
    quick: bool,
    width: int,
    layers: int,
    steps: int,
    rows: int,
    repeats: int,
    threads: int,
    device: str,
    as_json: bool,
) -> None:
    """Compare sampling with shared work to dense sampling: 8 prompts x 4 seeds of 5 s clips."""
    if quick:
        width, layers, steps, repeats = 256, 6, 1, 2
    torch.set_num_threads(threads)
    config = network_config(width, layers)
    sampler = random_sampler(config, Grid(rows=rows), device)
    result = measure(config, sampler, steps, repeats, clock_of(device, threads))
    for key, value in result.items():
        click.echo(f"{key:26s} {value:g}")
    if as_json:
        setting = {"device": device, "width": width, "layers": layers, "steps": steps}
        setting |= {"rows": rows, "threads": threads, "torch": torch.__version__}
        click.echo(json.dumps(result | setting | {"mode": "exact", "commit": commit()}))


if __name__ == "__main__":
    main()
