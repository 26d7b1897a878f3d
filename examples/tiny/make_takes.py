"""Make the built-in model's training takes from raw clips: seconds of motion, each with captions.

    hymotion-ray ingest ../shared/corpus --captions ../shared/corpus/captions.csv --out RAW \
        --set gates.max_hover_m=0.3 --set gates.max_static_share=1
    python examples/tiny/make_takes.py --raw RAW --deepmimic ../shared/corpus/deepmimic --out TAKES
    hymotion-ray ingest TAKES --captions TAKES/captions.csv --out SHARDS --set splits.val=0 \
        --set splits.test=0 --set gates.max_hover_m=0.6 --set gates.max_static_share=1

Raw clips last a second or two, and a model is asked for five. So cycles go on, actions are done
again after a pause, last poses are held, at several speeds; a take is a window of that. Clips of
held_out.csv are left out, and no caption may be one of the test prompts.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from hymotion_ray.engine.evaluate.judgement import default_prompts, read_test_prompts
from hymotion_ray.engine.train.clips import TURNS, Track, build_tracks
from hymotion_ray.engine.train.take_windows import canonical, hip_heading, vary
from hymotion_ray.errors import InputError
from hymotion_ray.formats.motions import save_motion
from hymotion_ray.formats.shards import iter_shards
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton

HERE = Path(__file__).parent
FPS = 30
LENGTHS = (60, 90, 120, 150, 150, 180, 240, 300, 360)
SPEEDS = (0.9, 1.0, 1.1)
PAUSES = (0.3, 0.8)
STRAIGHT_DEGREES = 50
"""A window goes straight whose hips, which swing with each step, stay in such a sector."""
EASE = 12
"""Frames in which a clip eases back into its start."""
NUM_CAPTIONS = 16
"""Captions of a take, drawn from its clip's."""
TRIES = 60
"""Windows looked at for one that turns as wanted."""
Pose = tuple[Tensor, Tensor]
"""rot6d (L,22,6) and transl (L,3)."""


@dataclass(frozen=True)
class Take:
    """A window of motion, and what may be said of it."""

    name: str
    motion: Motion
    captions: tuple[str, ...]


def read_clips(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Use and captions of each clip of a table with the columns clip, use and caption.

    A use may name the frames that it is about, as in `action 104-150`.
    """
    clips: dict[str, tuple[str, list[str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            clips.setdefault(row["clip"], (row["use"], []))[1].append(row["caption"])
    return clips


def held_out() -> set[str]:
    """Clips that training never sees."""
    with (HERE / "held_out.csv").open(encoding="utf-8", newline="") as file:
        return {row["clip"] for row in csv.DictReader(file)}


def raw_clips(raw: str, wanted: Iterable[str]) -> dict[str, list[Pose]]:
    """The pieces of each wanted clip, in order, by the end of their clip ids."""
    pieces: dict[str, list[tuple[int, Pose]]] = {}
    names = sorted(wanted, key=len, reverse=True)
    for split in ("train", "val", "test"):
        for clip in iter_shards(raw, split, seed=0, epoch=0):
            place, _, frames = clip.clip_id.rpartition("@")
            name = next((name for name in names if place.endswith(name)), None)
            if name is not None:
                pose = torch.from_numpy(clip.rot6d.copy()), torch.from_numpy(clip.transl.copy())
                pieces.setdefault(name, []).append((int(frames.split("-")[0]), pose))
    return {
        name: [pose for _, pose in sorted(found, key=lambda piece: piece[0])]
        for name, found in pieces.items()
    }


def resampled(pose: Pose, speed: float) -> Pose:
    """The clip at another speed: straight lines between neighbouring frames."""
    num_frames = len(pose[1])
    at = torch.arange(0, num_frames - 1 + 1e-6, speed)
    low = at.long().clamp_max(num_frames - 2)
    share = at - low
    return tuple(  # type: ignore[return-value]
        torch.lerp(part[low], part[low + 1], share.view(-1, *[1] * (part.dim() - 1)))
        for part in pose
    )


def extended(pose: Pose, use: str, num_frames: int, pause: int) -> Pose:
    """At least `num_frames` frames of a clip that is used so."""
    rot6d, transl = pose
    if use == "whole" or len(transl) >= num_frames:
        return pose
    if use == "hold":
        lacking = num_frames - len(transl)
        return (
            torch.cat([rot6d, rot6d[-1:].expand(lacking, -1, -1)]),
            torch.cat([transl, transl[-1:].expand(lacking, -1)]),
        )
    step = transl[-1] - transl[0]
    step[1] = 0.0
    weight = torch.linspace(0, 1, EASE + 2)[1:-1]
    back = (
        torch.lerp(rot6d[-1:], rot6d[:1], weight[:, None, None]),
        torch.lerp(transl[-1:], transl[:1] + step, weight[:, None]),
    )
    still = pause if use == "action" else 0
    cycle = torch.cat([rot6d, back[0], rot6d[:1].expand(still, -1, -1)])
    moves = torch.cat([transl, back[1], (transl[:1] + step).expand(still, -1)])
    count = -(-num_frames // len(moves))
    return (
        cycle.repeat(count, 1, 1),
        torch.cat([moves + number * step for number in range(count)]),
    )


def takes_of_raw(
    clips: dict[str, tuple[str, list[str]]], raw: str, per_clip: int, draw: random.Random
) -> Iterable[Take]:
    """Takes of clips on our skeleton, as an ingest made them."""
    skeleton = generic_skeleton()
    found = raw_clips(raw, clips)
    lacking = sorted(set(clips) - set(found))
    if lacking:
        raise InputError(f"{raw} lacks {', '.join(lacking)}; ingest the whole corpus")
    for name, (told, captions) in clips.items():
        use, _, frames = told.partition(" ")  # "action 104-150": only these frames of it
        part_of = slice(*map(int, frames.split("-"))) if frames else slice(None)
        for number in range(per_clip):
            rot6d, transl = draw.choice(found[name])
            piece = resampled((rot6d[part_of], transl[part_of]), draw.choice(SPEEDS))
            length = draw.choice(LENGTHS)
            pose = extended(piece, use, length, round(FPS * draw.choice(PAUSES)))
            room = len(pose[1]) - length
            start = draw.randint(0, max(0, room)) if use in ("cycle", "whole") else 0
            part = tuple(p[start : start + length] for p in pose)
            motion = Motion.from_rotations(part[0], part[1], skeleton, FPS)
            yield Take(f"{_safe(name)}-{number}", motion, tuple(captions))


def takes_of_tracks(tracks: Sequence[Track], per_clip: int, draw: random.Random) -> Iterable[Take]:
    """Takes of DeepMimic clips; captions that speak of a turn only where the window turns so.

    Of a clip that turns here and there, as many windows go straight as turn either way: walks would
    be known as turns otherwise.
    """
    skeleton: Skeleton = generic_skeleton()
    for name in dict.fromkeys(track.clip for track in tracks):
        own = [track for track in tracks if track.clip == name][::2]  # not the mirrored ones
        turns = [i for i in range(len(TURNS)) if own[0].captions[i]]
        for number in range(per_clip):
            wanted = turns[number % len(turns)]
            for _ in range(TRIES):
                track = draw.choice(own)
                length = min(max(draw.choice(LENGTHS), track.min_frames), len(track.features))
                start = draw.randint(0, max(0, min(track.num_starts, len(track.features) - length)))
                window = track.features[start : start + length]
                turn = turn_of(window)
                if turn == wanted or len(set(track.captions)) == 1:
                    break
            x = canonical(window[None], hip_heading(window[:1]))[0]
            motion = Motion.from_rotations(
                x[:, 3:135].unflatten(1, (22, 6)), x[:, :3], skeleton, FPS
            )
            yield Take(f"{name}-{number}", motion, track.captions[turn])


def turn_of(window: Tensor) -> int:
    """Which of TURNS a window of features takes."""
    facing = np.unwrap(hip_heading(window).double().numpy())
    if np.degrees(np.ptp(facing)) < STRAIGHT_DEGREES:
        return TURNS.index("straight")
    return TURNS.index("left" if facing[-1] > facing[0] else "right")


def _safe(name: str) -> str:
    return name.rpartition("/")[2].replace("#", "-").replace(".", "-")


@click.command()
@click.option("--raw", required=True, help="Shards of the corpus.")
@click.option("--deepmimic", required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--out", required=True, type=click.Path(path_type=Path))
@click.option("--per-clip", default=12, show_default=True, help="Takes of each clip.")
@click.option("--seed", default=0, show_default=True)
def main(raw: str, deepmimic: str, out: Path, per_clip: int, seed: int) -> None:
    """Write takes and captions.csv to --out."""
    draw = random.Random(seed)
    clips = read_clips(HERE / "more_captions.csv")
    shared = sorted(held_out() & set(clips))
    if shared:
        raise InputError(f"more_captions.csv has held-out clips: {', '.join(shared)}")
    tracks = build_tracks(deepmimic, HERE / "captions.csv", generic_skeleton())
    out.mkdir(parents=True, exist_ok=True)
    prompts = {test.text for test in read_test_prompts(default_prompts())}
    with (out / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "caption"])
        takes = [
            *takes_of_tracks(tracks, per_clip, draw),
            *takes_of_raw(clips, raw, per_clip, draw),
        ]
        for take in takes:
            save_motion(take.motion, out / f"{take.name}.npz")
            said = draw.choices(take.captions, k=NUM_CAPTIONS)
            for i, text in enumerate(dict.fromkeys(said)):
                caption = text if i % 3 == 0 else vary(text, draw)
                if caption not in prompts:
                    table.writerow([f"{take.name}.npz", caption])
    minutes = sum(take.motion.num_frames for take in takes) / FPS / 60
    click.echo(f"{len(takes)} takes, {minutes:.1f} minutes, in {out}")


if __name__ == "__main__":
    main()
