"""What does each approximate mode cost in distance from the exact clip, and what does it save?

Distances (`--device cpu`): the built-in `tiny` model, first prompts of `examples/prompts.txt`, one
seed each, at the model's own settings and at the released models' (50 steps, guidance 5). Of each
mode: relative RMS distance of the latents, and how far body joints are from where the exact clip
has them, in millimetres (mean and 95th percentile over clips, frames and joints), in the world and
seen from the pelvis. Another seed of the same prompts stands beside them: so far apart are two
clips that are equally right.

Pace (`--device cuda`): the 1.0B shape with random weights in bfloat16, 64 prompts x 1 seed of 360
frames; clips/s of each mode, and of the exact way before and after them, in one run.

    python benchmarks/bench_approximate.py --device cpu --out benchmarks/results/cpu2-DATE.json
    python benchmarks/bench_approximate.py --out benchmarks/results/h200-DATE.json
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch
from bench_gpu import commit, condition, make_sampler, matrix_rate, mix, random_network
from torch import Tensor

import hymotion_ray as hm
from hymotion_ray.config import Grid, SamplingConfig
from hymotion_ray.config.grid import GPU_TEXT_ROWS
from hymotion_ray.config.releases import TRAIN_FRAMES
from hymotion_ray.config.sampling import Precision
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.float8 import reference_motion
from hymotion_ray.model.fused.choose import fused_or_plain, why_plain
from hymotion_ray.model.split.shared import SharedNetwork
from hymotion_ray.model.streams import MotionLayout, TextStream
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS

PROMPTS = Path(__file__).resolve().parent.parent / "examples" / "prompts.txt"
RELEASED = {"num_steps": 50, "guidance_scale": 5.0}
SEED, OTHER_SEED = 0, 1
WARM_STEPS = 4


@dataclass(frozen=True)
class Mode:
    """A way to sample, as a change of the exact one."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of `SamplingConfig`."""
    steps: float = 1.0
    """Share of the exact way's steps."""
    precision: Precision | None = None
    """Number format; None: the exact way's."""

    def of(self, exact: SamplingConfig) -> SamplingConfig:
        """The mode's sampling."""
        return replace(exact, num_steps=round(exact.num_steps * self.steps), **self.settings)


_EARLY = {"guidance_interval": (0.0, 0.5)}
MODES = {
    "bfloat16": Mode(precision="bfloat16"),
    "euler, 1/2 of the steps": Mode(steps=1 / 2),
    "midpoint, 1/2 of the steps": Mode({"method": "midpoint"}, steps=1 / 2),
    "midpoint, 1/4 of the steps": Mode({"method": "midpoint"}, steps=1 / 4),
    "guidance 0.1 to 0.8": Mode({"guidance_interval": (0.1, 0.8)}),
    "guidance 0 to 0.8": Mode({"guidance_interval": (0.0, 0.8)}),
    "guidance 0 to 0.5": Mode(_EARLY),
    "null every 2": Mode({"null_every": 2}),
    "null every 4": Mode({"null_every": 4}),
    "guidance 0 to 0.5, null every 2": Mode(_EARLY | {"null_every": 2}),
    "float8": Mode(precision="float8"),
    "float8, guidance 0 to 0.5": Mode(_EARLY, precision="float8"),
}


class Results:
    """What was measured so far, written after every line of it."""

    def __init__(self, out: Path | None, head: dict[str, Any]) -> None:
        self.held, self._out = head, out

    def add(self, section: str, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure one configuration; an error is its result, and the others go on."""
        try:
            found = measure()
        except Exception as error:  # noqa: BLE001 - told in its place, whatever it is
            found = {"error": f"{type(error).__name__}: {error}"[:500]}
        self.held.setdefault(section, {})[name] = found
        click.echo(f"{section}: {name}: {json.dumps(found)}", err=True)
        if self._out is not None:
            self._out.write_text(json.dumps(self.held, indent=1) + "\n", encoding="utf-8")


def distances(got: list[Tensor], want: list[Tensor], model: hm.Model) -> dict[str, float]:
    """Of latents (L, 201) and of the body joints decoded from them."""
    latent, exact = torch.cat(got), torch.cat(want)
    motions = zip(model.decode(got), model.decode(want), strict=True)
    apart = torch.cat([(a.joints - b.joints)[:, :NUM_BODY_JOINTS] for a, b in motions])
    world, pose = 1000 * apart.norm(dim=-1), 1000 * (apart - apart[:, :1]).norm(dim=-1)
    return {
        "latent_rel_rms": round(float((latent - exact).norm() / exact.norm()), 5),
        "joint_mean_mm": round(float(world.mean()), 1),
        "joint_p95_mm": round(float(world.quantile(0.95)), 1),
        "joint_from_pelvis_mean_mm": round(float(pose.mean()), 1),
        "joint_from_pelvis_p95_mm": round(float(pose.quantile(0.95)), 1),
    }


class PlainFloat8(SharedNetwork):
    """A plain network whose motion half does its products in float8, as the fused one does.

    The weights around them stay as they are, so that the distance is that of the products alone.
    """

    def __init__(self, network: MotionMMDiT) -> None:
        super().__init__(network)
        self._motion = reference_motion(network)

    def text_stream(
        self, context: Tensor, vector: Tensor, t: Tensor, context_length: Tensor
    ) -> TextStream:
        """The exact network's."""
        return self.network.text_stream(context, vector, t, context_length)

    def empty_text_rows(self, num_rows: int, num_tokens: int) -> TextStream:
        """Unwritten memory for text rows."""
        return self.network.empty_text_rows(num_rows, num_tokens)

    def motion_stream(self, x: Tensor, text: TextStream, layout: MotionLayout) -> Tensor:
        """Velocity (B, L, 201), with products in float8."""
        return self._motion.motion_stream(x, text, layout)


def sampler_of(model: hm.Model, precision: Precision | None) -> Sampler:
    """A sampler of `tiny` in a number format, clip by clip: few share a cell."""
    grid = Grid(rows=1)
    if precision is None:
        return model.new_sampler(grid)
    if precision == "float8":
        return model.sampler_over(PlainFloat8(model.network), grid)
    return hm.load_model("tiny", dtype=precision).new_sampler(grid)


def measure_distances(results: Results, num_prompts: int, num_steps: int | None) -> None:
    """Every mode beside the exact clips of `tiny`, in fp32 on the CPU."""
    model = hm.load_model("tiny")
    rows = hm.read_prompts(PROMPTS).rows[:num_prompts]
    encoded = model.encode([row.text for row in rows])
    given = encoded.context, encoded.vector, encoded.length
    own = model.config.sampling
    for kind in (own, replace(own, **RELEASED)):
        exact = replace(kind, num_steps=num_steps or kind.num_steps)
        section = f"tiny, {exact.num_steps} steps, guidance {exact.guidance_scale:g}"

        def clips(sampler: Sampler, sampling: SamplingConfig, seed: int) -> list[Tensor]:
            asked = [Row(i, row.num_frames, seed) for i, row in enumerate(rows)]
            return sampler.sample(*given, asked, sampling)

        plain = sampler_of(model, None)
        want, another = (clips(plain, exact, seed) for seed in (SEED, OTHER_SEED))
        results.add(section, "another seed", lambda a=another, w=want: distances(a, w, model))
        for name, mode in MODES.items():

            def measure(mode: Mode = mode, exact: SamplingConfig = exact, want=want) -> Any:
                sampler = sampler_of(model, mode.precision)
                return distances(clips(sampler, mode.of(exact), SEED), want, model)

            results.add(section, name, measure)


def measure_pace(results: Results, num_steps: int, num_rows: int) -> None:
    """Every mode beside the exact way at full size on a GPU."""
    device = torch.device("cuda")
    results.held["matrix_tflop_per_s"] = round(matrix_rate(device) / 1e12, 1)
    network = random_network(device).to(torch.bfloat16)
    assert why_plain(network) is None, why_plain(network)
    samplers = {None: make_sampler(fused_or_plain(network), num_rows, GPU_TEXT_ROWS)}
    given, rows = condition(num_rows, 40), mix(num_rows, 1, TRAIN_FRAMES)
    exact = SamplingConfig(num_steps=num_steps)
    want: list[Tensor] = []

    def measure(sampling: SamplingConfig, precision: Precision | None = None) -> dict[str, Any]:
        if precision not in samplers:
            form = fused_or_plain(network, float8=True)
            samplers[precision] = make_sampler(form, num_rows, GPU_TEXT_ROWS)
        sampler = samplers[precision]
        # Graphs are captured at few steps; what a step costs does not depend on how many there are.
        sampler.sample(*given, rows, replace(sampling, num_steps=WARM_STEPS))
        torch.cuda.synchronize()
        start = time.perf_counter()
        got = sampler.sample(*given, rows, sampling)
        seconds = time.perf_counter() - start
        want[:] = want or got
        error = (torch.cat(got) - torch.cat(want)).norm() / torch.cat(want).norm()
        return {
            "clips_per_s": round(num_rows / seconds, 2),
            "latent_rel_rms": round(float(error), 5),
        }

    section = f"1.0B, {num_rows} x 1, {TRAIN_FRAMES} frames, {num_steps} steps"
    results.add(section, "exact", lambda: measure(exact))
    for name, mode in MODES.items():
        if mode.precision != "bfloat16":  # which is the exact way there
            results.add(section, name, lambda m=mode: measure(m.of(exact), m.precision))
    results.add(section, "exact again", lambda: measure(exact))


def versions() -> Iterator[tuple[str, Any]]:
    """Where and with what this is measured."""
    yield "commit", commit()
    yield "command", " ".join(["python", "benchmarks/bench_approximate.py", *sys.argv[1:]])
    yield "versions", {"python": sys.version.split()[0], "torch": torch.__version__}


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda if there is]")
@click.option("--prompts", "num_prompts", default=5, show_default=True, help="Prompts of `tiny`.")
@click.option("--steps", "num_steps", type=int, help="Steps of the exact way, to try this quickly.")
@click.option("--rows", "num_rows", default=64, show_default=True, help="Clips at once on the GPU.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the JSON here.")
def main(
    device: str | None, num_prompts: int, num_steps: int | None, num_rows: int, out: Path | None
) -> None:
    """Measure; one line a configuration on stderr, the JSON on stdout."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores"
    results = Results(out, {"device": name, **dict(versions())})
    if device == "cuda":
        measure_pace(results, num_steps or 50, num_rows)
    else:
        measure_distances(results, num_prompts, num_steps)
    click.echo(json.dumps(results.held))


if __name__ == "__main__":
    main()
