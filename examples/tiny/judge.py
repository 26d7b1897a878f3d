"""Judge the built-in model by what its clips do, and write REPORT.md beside this file.

python examples/tiny/judge.py --data CLIPS

Prompts and what each should show stand in test_prompts.csv and in ACTIONS; both were fixed before
training, and no prompt but the first of walk and jump is a caption of the training set. Each prompt
is compared with chance (how often clips of the other actions' prompts pass its test) and with the
nearest training clip (windows of the clip whose caption's text vector is nearest to the prompt's).
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np
import torch

import hymotion_ray as hm
from hymotion_ray.engine.train.batches import canonical, hip_heading
from hymotion_ray.engine.train.clips import Track, build_tracks
from hymotion_ray.motion.ground import sole_heights
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.quality import measure
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import ANKLES, PELVIS, WRISTS, generic_skeleton

HERE = Path(__file__).parent
NUM_FRAMES = 150
HEAD = 15
AIR_METRES, AIR_QUANTILE = 0.06, 0.25
"""A body is in the air while both soles are this much higher than in this share of its frames: one
frame with a toe in the floor must not make the rest of the clip fly."""


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What one clip does. Metres, seconds, degrees; heights above the clip's floor."""

    forward: float
    """Travel along where the body faces at the start."""
    air: float
    """Time with both feet in the air."""
    foot: float
    """Highest ankle."""
    hand: float
    """Lowest wrist."""
    reach: float
    """Farthest that a wrist is from the pelvis over the floor."""
    out: float
    """Mean distance of the wrists from the pelvis over the floor."""
    arms: float
    """Mean speed of the wrists against the pelvis, m/s."""
    head_low: float
    head_start: float
    head_end: float
    head_mean: float
    tilt: float
    """Smallest cosine between the pelvis's up axis and the vertical: -1 upside down."""
    turn: float
    """Net turn, left positive."""
    turned: float
    """Turns added up, whichever way."""


def statistics(motion: Motion) -> Statistics:
    """The statistics of one clip."""
    joints = motion.joints.double()
    soles = sole_heights(joints, motion.skeleton)
    joints = joints - torch.tensor([0.0, float(soles.amin()), 0.0])
    lowest = soles.amin(dim=1)
    in_air = lowest - lowest.quantile(AIR_QUANTILE) > AIR_METRES
    root = rot6d_to_matrix(motion.rot6d[:, PELVIS]).double()
    features = torch.cat([motion.transl, motion.rot6d.flatten(1)], dim=1)
    facing = np.unwrap(hip_heading(features).double().numpy())
    ahead = torch.tensor([np.sin(facing[0]), 0.0, np.cos(facing[0])])
    hands = joints[:, WRISTS] - joints[:, PELVIS, None]
    spans = hands[..., [0, 2]].norm(dim=-1)
    head = joints[:, HEAD, 1]
    return Statistics(
        forward=float((joints[-1, PELVIS] - joints[0, PELVIS]) @ ahead),
        air=float(in_air.double().sum()) / motion.fps,
        foot=float(joints[:, ANKLES, 1].amax()),
        hand=float(joints[:, WRISTS, 1].amin()),
        reach=float(spans.amax()),
        out=float(spans.mean()),
        arms=float(hands.diff(dim=0).norm(dim=-1).mean()) * motion.fps,
        head_low=float(head.amin()),
        head_start=float(head[0]),
        head_end=float(head[-1]),
        head_mean=float(head.mean()),
        tilt=float(root[:, 1, 1].amin()),
        turn=float(np.degrees(facing[-1] - facing[0])),
        turned=float(np.degrees(np.abs(np.diff(facing)).sum())),
    )


ACTIONS: dict[str, tuple[str, Callable[[Statistics], bool]]] = {
    "walk": (
        "goes forward 2 to 8 m, upright, arms down, less than 0.2 s in the air",
        lambda s: 2 < s.forward < 8 and s.air < 0.2 and s.head_mean > 1.4 and s.out < 0.55,
    ),
    "jump": (
        "is 0.2 s or more in the air, tilted at most 60 degrees, without spinning or kicking",
        lambda s: (
            s.air >= 0.2
            and s.tilt > 0.5
            and s.forward < 6
            and s.turned < 300
            and s.foot < 0.9
            and s.arms < 1.2
        ),
    ),
    "run": ("goes forward 10 m or more", lambda s: s.forward > 10),
    "jog": ("goes forward 8 to 16 m", lambda s: 8 < s.forward < 16),
    "kick": (
        "has an ankle above 0.9 m, is not upside down and less than 0.5 s in the air",
        lambda s: s.foot > 0.9 and s.tilt > -0.3 and s.air < 0.5,
    ),
    "punch": (
        "has a wrist 0.75 m away, feet on the floor, arms not swinging all the time",
        lambda s: s.reach > 0.75 and s.foot < 0.7 and s.air < 0.2 and s.tilt > 0.5 and s.arms < 1.5,
    ),
    "spin": (
        "lies level in the air and turns by 300 degrees",
        lambda s: s.air > 0.2 and -0.5 < s.tilt < 0.3 and s.turned > 300 and s.hand > 0.15,
    ),
    "spinkick": (
        "has an ankle above 1 m, turns by 300 degrees, upright, 0.1 s in the air",
        lambda s: s.foot > 1.0 and s.turned > 300 and s.air > 0.1 and s.tilt > 0.2,
    ),
    "backflip": (
        "is upside down in the air, hands free, and lands behind its start",
        lambda s: s.tilt < -0.5 and s.air > 0.2 and s.hand > 0.15 and s.forward < -0.2,
    ),
    "cartwheel": (
        "is upside down with a wrist near the floor and an ankle above 1 m",
        lambda s: s.tilt < -0.3 and s.hand < 0.2 and s.foot > 1.0,
    ),
    "crawl": (
        "keeps its head below 0.8 m on average and at the end",
        lambda s: s.head_mean < 0.8 and s.head_end < 0.8,
    ),
    "dance": (
        "moves its wrists at 1.2 m/s, upright, without kicks, and stays within 3 m ahead",
        lambda s: s.arms > 1.2 and s.tilt > 0.5 and abs(s.forward) < 3 and s.foot < 0.9,
    ),
    "roll": (
        "is upside down with its head below 0.5 m, after standing",
        lambda s: s.tilt < -0.2 and s.head_low < 0.5 and s.head_start > 1.0,
    ),
    "getup": (
        "has its head below 0.8 m first and above 1.2 m last",
        lambda s: s.head_start < 0.8 and s.head_end > 1.2,
    ),
    "stealthy": (
        "crouches (head at 1.1 to 1.42 m on average), arms quiet, and goes less than 4 m",
        lambda s: 1.1 < s.head_mean < 1.42 and s.arms < 0.7 and abs(s.forward) < 4,
    ),
    "zombie": (
        "holds its wrists 0.55 m out on average and goes forward 1 to 5 m, arms quiet",
        lambda s: s.out > 0.55 and 1 < s.forward < 5 and s.head_low > 1.1 and s.arms < 1.0,
    ),
    "turn_left": (
        "turns left by 30 degrees or more, upright, arms down",
        lambda s: s.turn > 30 and s.tilt > 0.7 and s.arms < 1.2 and s.out < 0.55,
    ),
    "turn_right": (
        "turns right likewise",
        lambda s: s.turn < -30 and s.tilt > 0.7 and s.arms < 1.2 and s.out < 0.55,
    ),
}


def share(test: Callable[[Statistics], bool], clips: Sequence[Statistics]) -> float:
    """Share of clips that pass."""
    return sum(map(test, clips)) / len(clips)


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
    with open(HERE / "test_prompts.csv", encoding="utf-8", newline="") as file:
        rows = [(row["prompt"], row["action"]) for row in csv.DictReader(file)]
    prompts = [prompt for prompt, _ in rows]
    tracks = build_tracks(data, HERE / "captions.csv", generic_skeleton())
    wanted = [
        hm.Row(prompt=i, num_frames=NUM_FRAMES, seed=seed)
        for i in range(len(rows))
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
    found = [statistics(motion) for motion in motions]
    lines, passed, by_nearest, real = [], [], [], []
    for i, ((prompt, action), clip) in enumerate(
        zip(rows, nearest_clips(model, prompts, tracks), strict=True)
    ):
        windows = training_windows(tracks, clip, num_seeds, seed=i)
        real += windows
        test = ACTIONS[action][1]
        ours = share(test, found[i * num_seeds : (i + 1) * num_seeds])
        chance = share(test, [s for k, s in enumerate(found) if rows[k // num_seeds][1] != action])
        nearest = share(test, [statistics(motion) for motion in windows])
        passed.append(ours)
        by_nearest.append(nearest)
        name = clip.removeprefix("humanoid3d_")
        lines.append(
            f"| {prompt} | {action} | {ours:.0%} | {chance:.0%} | {nearest:.0%} ({name}) |"
        )
    failing = [f"- {rows[i][0]} ({share:.0%})" for i, share in enumerate(passed) if share < 0.5]
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
            *[f"| {name} | {words} |" for name, (words, _) in ACTIONS.items()],
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
