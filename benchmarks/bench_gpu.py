"""How fast does one GPU sample the full-size network, and how far is that from the floor?

Random weights of the released 1.0B shape, 5 s clips, 36 text tokens, 50 Euler steps, guidance 5.
Dense is the reference's way on the same modules: all 360 frames, all 128 tokens, text again for
every row and step. Ways of ours: `fused` (the kernels and graphs that jobs use), `plain` (plain
torch, as where the kernels cannot serve), `compiled` (plain, each block compiled). Prints one JSON
line, and `--profile` the kernels of one step.

    python benchmarks/bench_gpu.py --out benchmarks/results/h200-DATE.json
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from hymotion_ray.config import Grid, SamplingConfig
from hymotion_ray.config.grid import GPU_TEXT_ROWS
from hymotion_ray.config.releases import TRAIN_FRAMES, released_network
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.fused.choose import fused_or_plain, why_plain
from hymotion_ray.planning.flops import motion_flops, text_flops

NUM_FRAMES, NUM_TOKENS, PADDED_TOKENS = 150, 36, 128
FULL = released_network("1.0")


KEYS = (
    "bulk_64x1_clips_per_s",
    "bulk_16x4_clips_per_s",
    "bulk_speedup_vs_dense",
    "bulk_fraction_of_floor",
    "one_clip_s",
    "four_seeds_s",
    "long_clips_per_s",
    "peak_gib_64_rows",
    "peak_gib_16_rows",
    "bf16_rel_error",
    "mode",
    "commit",
    "command",
    "versions",
)
"""What a results file holds, of what was measured."""


def random_network(device: torch.device) -> MotionMMDiT:
    """The full-size network in fp32."""
    network = MotionMMDiT(FULL, TRAIN_FRAMES).to(device)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in network.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter, std=0.02, generator=generator)
    return network.requires_grad_(False).eval()


def make_sampler(network: Any, rows: int, text_rows: int) -> Sampler:
    """A sampler whose token cell is just right for the prompts here."""
    generator = torch.Generator().manual_seed(1)
    return Sampler(
        network,
        null_vector=torch.randn(1, 1, 768, generator=generator),
        null_context=torch.randn(1, 1, 4096, generator=generator),
        train_frames=TRAIN_FRAMES,
        grid=Grid(rows=rows, text_rows=text_rows, token_cells=(40, 128)),
    )


def condition(num_prompts: int, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random features of prompts of 36 tokens, padded to `num_tokens`."""
    generator = torch.Generator().manual_seed(2)
    context = torch.randn(num_prompts, num_tokens, 4096, generator=generator)
    vector = torch.randn(num_prompts, 1, 768, generator=generator)
    return context, vector, torch.full((num_prompts,), NUM_TOKENS)


def mix(num_prompts: int, num_seeds: int, num_frames: int = NUM_FRAMES) -> list[Row]:
    """Every prompt with every seed."""
    return [Row(p, num_frames, s) for p in range(num_prompts) for s in range(num_seeds)]


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    """Median wall time of `function`, which waits for the device itself, after one warm-up."""
    function()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def matrix_rate(device: torch.device) -> float:
    """FLOP/s of an 8192 cubed bf16 product on random data: the ceiling counted against."""
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))

    def product() -> None:
        for _ in range(10):
            a @ b
        torch.cuda.synchronize()

    return 10 * 2 * 8192**3 / median_seconds(product, 3)


def floor_seconds(sampler: Sampler, rate: float) -> float:
    """Seconds that the counted operations of the last call take at `rate`."""
    work = sampler.work
    text = sum(n * text_flops(FULL, *shape) for shape, n in work.text.items())
    motion = sum(n * motion_flops(FULL, *shape) for shape, n in work.motion.items())
    return (text + motion) / rate


@click.command()
@click.option("--steps", default=50, show_default=True, help="Euler steps.")
@click.option("--repeats", default=3, show_default=True, help="Counted runs of each figure.")
@click.option(
    "--way",
    type=click.Choice(["fused", "plain", "compiled"]),
    default="fused",
    show_default=True,
    help="How the network is computed.",
)
@click.option("--profile", is_flag=True, help="Print the kernels of one step at 64 rows.")
@click.option("--skip-dense", is_flag=True, help="Leave the reference way out.")
@click.option("--commit", "commit_name", help="The commit measured; without: asked of git.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the JSON here too.")
def main(
    steps: int,
    repeats: int,
    way: str,
    profile: bool,
    skip_dense: bool,
    commit_name: str | None,
    out: Path | None,
) -> None:
    """Measure and print one JSON line."""
    device = torch.device("cuda")
    sampling = SamplingConfig(num_steps=steps)
    rate = matrix_rate(device)
    exact = random_network(device)
    results: dict[str, Any] = {"matrix_tflop_per_s": round(rate / 1e12, 1)}
    quarter = condition(1, PADDED_TOKENS)
    if not skip_dense:
        dense = make_sampler(exact, 4, 4)
        seconds = median_seconds(lambda: dense.sample_dense(*quarter, mix(1, 4), sampling), 1)
        results["dense_4_seeds_fp32_clips_per_s"] = round(4 / seconds, 3)
    tokens40 = condition(4, 40)
    want = make_sampler(exact, 4, 32).sample(*tokens40, mix(4, 1), sampling)
    plain = exact.to(torch.bfloat16)
    network = in_way(plain, way)
    got = make_sampler(network, 4, 32).sample(*tokens40, mix(4, 1), sampling)
    error = (torch.cat(got) - torch.cat(want)).norm() / torch.cat(want).norm()
    results["bf16_rel_error"] = round(float(error), 5)
    if not skip_dense:
        dense = make_sampler(plain, 32, 32)
        many = condition(32, PADDED_TOKENS)
        seconds = median_seconds(lambda: dense.sample_dense(*many, mix(32, 1), sampling), 1)
        results["dense_32_rows_bf16_clips_per_s"] = round(32 / seconds, 3)
    for name, rows in (("64x1", mix(64, 1)), ("16x4", mix(16, 4))):
        sampler = make_sampler(network, 64, GPU_TEXT_ROWS)
        given = condition(len({row.prompt for row in rows}), 40)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

        def bulk(sampler: Sampler = sampler, rows: list[Row] = rows, given=given) -> None:
            sampler.work.clear()
            sampler.sample(*given, rows, sampling)

        seconds = median_seconds(bulk, repeats)
        results[f"bulk_{name}_clips_per_s"] = round(64 / seconds, 2)
        floor = floor_seconds(sampler, rate)
        results[f"bulk_{name}_fraction_of_floor"] = round(floor / seconds, 3)
        results[f"peak_gib_64_rows_{name}"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    del sampler, bulk
    sampler = make_sampler(network, 16, GPU_TEXT_ROWS)
    given, few = condition(16, 40), mix(16, 1)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    results["bulk_16x1_clips_per_s"] = round(
        16 / median_seconds(lambda: sampler.sample(*given, few, sampling), repeats), 2
    )
    results["peak_gib_16_rows"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    for name, rows in (("one_clip_s", mix(1, 1)), ("four_seeds_s", mix(1, 4))):
        sampler = make_sampler(network, len(rows), GPU_TEXT_ROWS)
        given = condition(1, 40)
        results[name] = round(
            median_seconds(lambda s=sampler, r=rows, g=given: s.sample(*g, r, sampling), repeats),
            4,
        )
    long_rows = mix(32, 1, TRAIN_FRAMES)
    sampler = make_sampler(network, 32, GPU_TEXT_ROWS)
    given = condition(32, 40)
    seconds = median_seconds(lambda: sampler.sample(*given, long_rows, sampling), 1)
    results["long_clips_per_s"] = round(32 / seconds, 2)
    results |= {
        "mode": "exact",
        "way": way,
        "device": torch.cuda.get_device_name(),
        "commit": commit_name or commit(),
        "command": "python benchmarks/bench_gpu.py" + ("" if way == "fused" else f" --way {way}"),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
    }
    if profile:
        click.echo(profile_of_step(network))
    results["bulk_fraction_of_floor"] = results["bulk_64x1_fraction_of_floor"]
    results["peak_gib_64_rows"] = results["peak_gib_64_rows_64x1"]
    if not skip_dense:
        ratio = results["bulk_64x1_clips_per_s"] / results["dense_32_rows_bf16_clips_per_s"]
        results["bulk_speedup_vs_dense"] = round(ratio, 2)
    click.echo(json.dumps(results))
    if out is not None:
        kept = {name: results[name] for name in KEYS if name in results}
        out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def in_way(network: MotionMMDiT, way: str) -> Any:
    """`network` as the way computes it."""
    if way == "fused":
        assert why_plain(network) is None, why_plain(network)
        return fused_or_plain(network)
    if way == "compiled":
        torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined]
        for block in (*network.double_blocks, *network.single_blocks):
            block.motion = torch.compile(block.motion, dynamic=False)  # type: ignore[method-assign]
            block.text = torch.compile(block.text, dynamic=False)  # type: ignore[method-assign]
    return network


def profile_of_step(network: Any) -> str:
    """Kernels of two Euler steps of 64 rows, by time."""
    sampler = make_sampler(network, 64, GPU_TEXT_ROWS)
    given, rows, two = condition(16, 40), mix(16, 4), SamplingConfig(num_steps=2)
    sampler.sample(*given, rows, two)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        sampler.sample(*given, rows, two)
        torch.cuda.synchronize()
    return str(recorded.key_averages().table(sort_by="self_cuda_time_total", row_limit=25))


def commit() -> str:
    """The commit measured, or `unknown` outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
