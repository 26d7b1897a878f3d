"""Judge the built-in model by what its clips do, and write REPORT.md beside this file.

python examples/tiny/judge.py --data CLIPS

Prompts and what each should show stand in test_prompts.csv and in `motion.metrics_actions`; both
were fixed before training, and no prompt but the first of walk and jump is a caption of the
training set. The judgement is that of `hymotion-ray evaluate`, of clips that are sampled without
Ray. The baseline differs: windows of the tracks that this model was trained on, with their own
speeds and pauses, of the clip whose caption's text vector is nearest to the prompt's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

import hymotion_ray as hm
from hymotion_ray.engine.evaluate.judgement import judge, read_test_prompts
from hymotion_ray.engine.train.batches import canonical, hip_heading
from hymotion_ray.engine.train.clips import Track, build_tracks
from hymotion_ray.motion.metrics_actions import ACTIONS, statistics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.quality import measure
from hymotion_ray.motion.skeleton import generic_skeleton

HERE = Path(__file__).parent
NUM_FRAMES = 150


def nearest_clips(model: hm.Model, prompts: Sequence[str], tracks: Sequence[Track]) -> list[str]:
    """For each prompt the training clip with the nearest caption (cosine of the text vectors)."""
    owners = {text: track.clip for track in tracks for group in track.captions for text in group}
    captions = list(owners)
    unit = torch.nn.functional.normalize
    held = unit(model.encode(captions).vector[:, 0], dim=-1)
    asked = unit(model.encode(list(prompts)).vector[:, 0], dim=-1)
    return [owners[captions[i]] for i in (asked @ held.T).argmax(1).tolist()]


def training_windows(tracks: Sequence[Track], clip: str, count: int, seed: int) -> list[Motion]:
    """`count` windows of a clip's tracks as training draws them."""
    draw = np.random.default_rng(seed)
    own = [track for track in tracks if track.clip == clip]
    motions = []
    for _ in range(count):
        track = own[draw.integers(len(own))]
        last = min(track.num_starts, len(track.features) - NUM_FRAMES)
        start = int(draw.integers(max(1, last)))
        window = track.features[start : start + NUM_FRAMES]
        x = canonical(window[None], hip_heading(window[:1]))[0]
        motions.append(
            Motion.from_rotations(
                x[:, 3:135].unflatten(1, (22, 6)), x[:, :3], generic_skeleton(), 30
            )
        )
    return motions


def rows_of(motions: Sequence[Motion], texts: Sequence[str]) -> dict[str, list[Any]]:
    """Clips as the columns that `judge` reads."""
    columns: dict[str, list[Any]] = {"text": list(texts)}
    for motion in motions:
        for name, value in vars(statistics(motion)).items():
            columns.setdefault(f"does_{name}", []).append(value)
    return columns


def quality_line(name: str, motions: Sequence[Motion]) -> str:
    """One row of the quality table: medians."""
    found = [measure(motion) for motion in motions]
    skate, speed, jitter = (
        float(np.median([getattr(q, field) for q in found]))
        for field in ("skate", "skate_speed", "jitter")
    )
    return f"| {name} | {100 * skate:.0f} % | {speed:.2f} | {jitter:.0f} |"


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--model", "model_name", default="tiny", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--num-seeds", default=8, show_default=True)
@click.option("--num-steps", type=int, help="Solver steps; default: the model's own.")
@click.option("--guidance", type=float, help="Guidance scale; default: the model's own.")
@click.option("--out", default=str(HERE / "REPORT.md"), show_default=True)
def main(
    data: str,
    model_name: str,
    device: str,
    num_seeds: int,
    num_steps: int | None,
    guidance: float | None,
    out: str,
) -> None:
    """Sample every test prompt, compare with chance and the nearest clip, and write the report."""
    model = hm.load_model(model_name, device=device)
    tests = read_test_prompts(str(HERE / "test_prompts.csv"))
    prompts = [test.text for test in tests]
    tracks = build_tracks(data, HERE / "captions.csv", generic_skeleton())
    wanted = [
        hm.Row(prompt=i, num_frames=NUM_FRAMES, seed=seed)
        for i in range(len(tests))
        for seed in range(num_seeds)
    ]
    own = model.config.sampling
    sampling = dataclasses.replace(
        own,
        num_steps=own.num_steps if num_steps is None else num_steps,
        guidance_scale=own.guidance_scale if guidance is None else guidance,
    )
    latents = model.sample(
        model.encode(prompts), wanted, sampling.num_steps, sampling.guidance_scale
    )
    motions = model.decode(latents)
    lines, real = [], []
    judged = judge(tests, [rows_of(motions, [prompts[row.prompt] for row in wanted])])
    for i, (own, clip) in enumerate(
        zip(judged, nearest_clips(model, prompts, tracks), strict=True)
    ):
        windows = training_windows(tracks, clip, num_seeds, seed=i)
        real += windows
        test = ACTIONS[own.prompt.action][1]
        own.nearest = float(np.mean([test(statistics(motion)) for motion in windows]))
        name = clip.removeprefix("humanoid3d_")
        lines.append(
            f"| {own.prompt.text} | {own.prompt.action} | {own.share:.0%} | {own.chance:.0%} | "
            f"{own.nearest:.0%} ({name}) |"
        )
    passed, by_nearest = [own.share for own in judged], [own.nearest for own in judged]
    failing = [f"- {own.prompt.text} ({own.share:.0%})" for own in judged if own.share < 0.5]
    used = dict.fromkeys(test.action for test in tests)
    text = "\n".join(
        [
            "# What the built-in model does",
            "",
            f"{num_seeds} seeds a prompt, {NUM_FRAMES / 30:.0f} s, {sampling.num_steps} steps of "
            f"{sampling.method}, guidance {sampling.guidance_scale}, float32, {device}. Command: "
            "`python examples/tiny/judge.py --data CLIPS`.",
            "Chance: how often the clips of all other actions' prompts pass the same test. "
            "Nearest: windows of the training clip whose caption is nearest to the prompt.",
            "",
            "| prompt | test | tiny | chance | nearest training clip |",
            "|---|---|---|---|---|",
            *lines,
            f"| **mean** | | **{np.mean(passed):.0%}** | | **{np.mean(by_nearest):.0%}** |",
            "",
            "| test | a clip passes when it |",
            "|---|---|",
            *[f"| {name} | {ACTIONS[name][0]} |" for name in used],
            "",
            "| clips | sliding frames | toe speed near floor, m/s | jitter, 10 m/s³ |",
            "|---|---|---|---|",
            quality_line("tiny", motions),
            quality_line("training data", real),
            "",
            "## Prompts that fail more often than not",
            "",
            *(failing or ["None of the above."]),
            "",
        ]
    )
    Path(out).write_text(text, encoding="utf-8")
    click.echo(
        f"wrote {out}: {np.mean(passed):.0%} of clips pass, nearest clip {np.mean(by_nearest):.0%}"
    )


if __name__ == "__main__":
    main()
