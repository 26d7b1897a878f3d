"""Does a small model do what it is asked? Test prompts judged by what the bodies do. CPU, no Ray.

    python benchmarks/judge_tiny.py MODEL --shards SHARDS --raw RAW --out REPORT.md

MODEL is a checkpoint or a model's name, SHARDS what it was trained on, RAW the ingested corpus.
Prompts and actions are `hymotion_ray/assets/evaluate/prompts.csv`, held-out clips
`examples/tiny/held_out.csv`; both were fixed before training, and neither is in a captions file.
Beside each prompt's share of clips that pass stand chance (clips of other actions' prompts that
pass the same test) and the windows of the training clip whose caption is nearest. How far the
tests themselves can be trusted, the held-out real clips say.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics as numbers
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import hymotion_ray as hm
from hymotion_ray.engine.evaluate.judgement import (
    Judged,
    default_prompts,
    judge,
    read_test_prompts,
    windows_of,
)
from hymotion_ray.errors import InputError
from hymotion_ray.formats.shards import iter_shards
from hymotion_ray.motion.metrics_actions import ACTIONS, statistics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.quality import measure
from hymotion_ray.motion.skeleton import generic_skeleton

REPO = Path(__file__).resolve().parents[1]
HELD_OUT = REPO / "examples" / "tiny" / "held_out.csv"
NUM_FRAMES = 150
SPLITS = ("train", "val", "test")


def real_clips(shards: str) -> Iterator[tuple[str, tuple[str, ...], Motion]]:
    """(clip id, captions, motion) of every clip of a dataset."""
    skeleton = generic_skeleton()
    for split in SPLITS:
        for clip in iter_shards(shards, split, seed=0, epoch=0):
            motion = Motion.from_rotations(
                torch.from_numpy(clip.rot6d.copy()),
                torch.from_numpy(clip.transl.copy()),
                skeleton,
                30,
            )
            yield clip.clip_id, tuple(c.text for c in clip.captions), motion


def add_nearest(judged: Sequence[Judged], model: hm.Model, shards: str) -> list[Motion]:
    """Put the nearest training clips' shares into `judged`; returns their windows."""
    clips = list(real_clips(shards))
    known = {text for _, texts, _ in clips for text in texts}
    asked = sorted(known & {own.prompt.text for own in judged})
    if asked:
        raise InputError(f"test prompts are captions of the training set: {', '.join(asked)}")
    captions = sorted(known)
    unit = torch.nn.functional.normalize
    held = unit(model.encode(captions).vector[:, 0].float(), dim=-1)
    wanted = unit(model.encode([own.prompt.text for own in judged]).vector[:, 0].float(), dim=-1)
    used: list[Motion] = []
    for own, best in zip(judged, (wanted @ held.T).argmax(1).tolist(), strict=True):
        own.nearest_caption = captions[best]
        windows = [
            window
            for _, texts, motion in clips
            if captions[best] in texts
            for window in windows_of(motion)
        ]
        test = ACTIONS[own.prompt.action][1]
        own.nearest = numbers.mean(float(test(statistics(window))) for window in windows)
        used += windows
    return used


def held_out_lines(raw: str) -> list[str]:
    """How the held-out real clips fare under their own action's test, and under all others."""
    with HELD_OUT.open(encoding="utf-8", newline="") as file:
        wanted = {row["clip"]: row["action"] for row in csv.DictReader(file)}
    lines = []
    for clip_id, _, motion in real_clips(raw):
        place = clip_id.rpartition("@")[0]
        action = next((a for name, a in wanted.items() if place.endswith(name)), None)
        if action is None:
            continue
        found = [statistics(window) for window in windows_of(motion)]
        own = numbers.mean(float(ACTIONS[action][1](s)) for s in found)
        judged = {a for a in wanted.values() if a != action}
        others = [a for a in sorted(judged) if any(ACTIONS[a][1](s) for s in found)]
        lines.append(f"| {place} | {action} | {own:.0%} | {', '.join(others) or '-'} |")
    return sorted(lines)


def columns_of(motions: Sequence[Motion], texts: Sequence[str]) -> dict[str, list[Any]]:
    """Clips as the columns that `judge` reads."""
    columns: dict[str, list[Any]] = {"text": list(texts)}
    for motion in motions:
        for name, value in vars(statistics(motion)).items():
            columns.setdefault(f"does_{name}", []).append(value)
    return columns


def quality(motions: Sequence[Motion]) -> dict[str, float]:
    """Medians of foot skating and jitter."""
    found = [measure(motion) for motion in motions]
    return {
        name: round(numbers.median(getattr(q, name) for q in found), 3)
        for name in ("skate", "skate_speed", "jitter")
    }


def report(judged: Sequence[Judged], qualities: dict[str, dict[str, float]], raw: str) -> str:
    """The report as Markdown."""
    rows = [
        f"| {own.prompt.text} | {own.prompt.action} | {own.share or 0:.0%} | {own.chance or 0:.0%}"
        f" | {own.nearest or 0:.0%} ({own.nearest_caption}) |"
        for own in judged
    ]
    failing = [
        f"- {own.prompt.text} ({own.share or 0:.0%})" for own in judged if (own.share or 0) < 0.5
    ]
    means = (
        numbers.mean(own.share or 0.0 for own in judged),
        numbers.mean(own.chance or 0.0 for own in judged),
        numbers.mean(own.nearest or 0.0 for own in judged),
    )
    used = dict.fromkeys(own.prompt.action for own in judged)
    return "\n".join(
        [
            "| prompt | test | model | chance | nearest training clip |\n|---|---|---|---|---|",
            *rows,
            "| **mean** | | " + " | ".join(f"**{mean:.0%}**" for mean in means) + " |",
            "\n| test | a clip passes when it |\n|---|---|",
            *[f"| {name} | {ACTIONS[name][0]} |" for name in used],
            "\n| clips | sliding frames | toe speed near floor, m/s | jitter, 10 m/s³ |",
            "|---|---|---|---|",
            *[
                f"| {name} | {q['skate']:.1%} | {q['skate_speed']:.2f} | {q['jitter']:.0f} |"
                for name, q in qualities.items()
            ],
            "\n| held-out real clip | action | passes its test | passes also |\n|---|---|---|---|",
            *held_out_lines(raw),
            "\n## Prompts that fail more often than not\n",
            *(failing or ["None of the above."]),
            "",
        ]
    )


def main() -> None:
    """Sample, judge, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--shards", required=True)
    parser.add_argument("--raw", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num-seeds", type=int, default=8)
    parser.add_argument("--num-steps", type=int, help="default: the model's own")
    parser.add_argument("--guidance", type=float, help="default: the model's own")
    args = parser.parse_args()
    model = hm.load_model(args.model, device=args.device)
    tests = read_test_prompts(default_prompts())
    prompts = [test.text for test in tests]
    rows = [
        hm.Row(prompt=i, num_frames=NUM_FRAMES, seed=seed)
        for i in range(len(tests))
        for seed in range(args.num_seeds)
    ]
    latents = model.sample(model.encode(prompts), rows, args.num_steps, args.guidance)
    motions = model.decode(latents)
    judged = judge(tests, [columns_of(motions, [prompts[row.prompt] for row in rows])])
    windows = add_nearest(judged, model, args.shards)
    qualities = {"model": quality(motions), "nearest training clips": quality(windows)}
    head = f"# {args.model}\n\n{args.num_seeds} seeds a prompt, 5 s, {args.device}.\n\n"
    args.out.write_text(head + report(judged, qualities, args.raw), encoding="utf-8")
    found = {
        "passed": round(numbers.mean(own.share or 0.0 for own in judged), 4),
        "chance": round(numbers.mean(own.chance or 0.0 for own in judged), 4),
        "nearest": round(numbers.mean(own.nearest or 0.0 for own in judged), 4),
        "quality": qualities,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
