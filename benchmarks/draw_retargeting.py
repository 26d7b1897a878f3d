"""Does a retargeted motion still stand, step and travel as its source does? A picture and numbers.

    python benchmarks/draw_retargeting.py ../shared docs/images/retargeting.png

Each row is one file: the source's joints (grey) and ours (blue, right leg and arm red) at even
moments, on one floor line, and below them the height of the toes over time, thin for the source,
thick for ours. Prints travel, contact and slip of both. All in metres of our body.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hymotion_ray.formats.sources import SourceClip, list_sources, read_source, to_motion
from hymotion_ray.formats.sources.joint_names import find_humanoid
from hymotion_ray.motion.skeleton import FEET, NUM_BODY_JOINTS, PARENTS, PELVIS, generic_skeleton

Doubles = NDArray[np.float64]
FILES = (
    "corpus/cmu.zip!cmu/02_01.amc",
    "corpus/bvh/jesse_dance.bvh",
    "motions/bvh/NC_bandai1_walk_normal_6ch_30fps.bvh",
    "corpus/bvh/zombie.bvh",
    "corpus/deepmimic/humanoid3d_spinkick.txt",
)
_WIDTH, _ROW, _CURVE, _FIGURES, _SCALE = 1000, 190, 60, 8, 78
_GREY, _BLUE, _RED = (150, 150, 150), (30, 90, 200), (210, 50, 40)
_LONGEST_M = 0.8  # a longer bone leads to a root at the world's origin
_NEAR, _STILL = 0.05, 0.3  # a toe this low (m) and this slow (m/s) is in contact


@dataclass(frozen=True)
class Pair:
    """Joints of a source and of our motion at the same moments, (L, J, 3) metres, and toes (L, 2,
    3) of both.
    """

    name: str
    source: Doubles
    parents: tuple[int, ...]
    ours: Doubles
    source_toes: Doubles
    our_toes: Doubles
    fit_m: float
    fps: float


def read_pair(shared: Path, name: str) -> Pair:
    """One file of the sample collections, and what became of it at the source's own frame rate."""
    root, _, member = name.partition("!")
    for file in list_sources([str(shared / root)]):
        if not member or file.member == member:
            for clip in read_source(file):
                if isinstance(clip, SourceClip):
                    return make_pair(name, clip)
    raise click.ClickException(f"{name} holds no clip")


def make_pair(name: str, clip: SourceClip) -> Pair:
    """Source and retargeted joints, the source scaled to our legs and put on our floor."""
    skeleton = generic_skeleton()
    motion, fit = to_motion(clip, skeleton, clip.fps)
    first = fit.dropped_frames
    human = find_humanoid(clip.joint_names, clip.parents)
    source = clip.positions[first:].astype(np.float64) * fit.scale
    toes = source[:, [human.joints.get(f"{s}_Foot", human.joints[f"{s}_Ankle"]) for s in "LR"]]
    ours = motion.joints[:, :NUM_BODY_JOINTS].numpy().astype(np.float64)
    our_toes = ours[:, list(FEET)]
    lift = our_toes[..., 1].min() - toes[..., 1].min()
    shift = np.array([0, lift, 0])
    return Pair(
        *(name, source + shift, clip.parents, ours, toes + shift, our_toes),
        *(fit.mean_error_m, clip.fps),
    )


def numbers(toes: Doubles, root: Doubles, fps: float) -> tuple[float, float, float]:
    """Metres travelled over the floor, share of frames in contact, slip in contact in m/s."""
    steps = np.linalg.norm(np.diff(toes[..., [0, 2]], axis=0), axis=-1) * fps
    low = toes[1:, :, 1] - toes[..., 1].min() < _NEAR
    contact = low & (steps < _STILL)
    path = np.linalg.norm(np.diff(root[:: max(1, round(fps / 5)), [0, 2]], axis=0), axis=-1).sum()
    slip = float(steps[contact].mean()) if contact.any() else 0.0
    return float(path), float(contact.any(axis=1).mean()), slip


def agreement(pair: Pair) -> float:
    """Share of frames and feet in which source and ours agree whether the foot is in contact."""
    states = []
    for toes in (pair.source_toes, pair.our_toes):
        steps = np.linalg.norm(np.diff(toes[..., [0, 2]], axis=0), axis=-1) * pair.fps
        states.append((toes[1:, :, 1] - toes[..., 1].min() < _NEAR) & (steps < _STILL))
    return float((states[0] == states[1]).mean())


def draw_row(draw: ImageDraw.ImageDraw, pair: Pair, top: int) -> None:
    """Figures of one file, then its toes' heights."""
    floor = pair.our_toes[..., 1].min()
    base = top + _ROW - 14
    draw.line([(0, base), (_WIDTH, base)], fill=(200, 200, 200))
    for k, frame in enumerate(np.linspace(0, len(pair.ours) - 1, _FIGURES).round().astype(int)):
        left = (k + 0.5) * _WIDTH / _FIGURES
        around = pair.ours[frame, PELVIS]
        views = (
            (pair.source[frame], pair.parents, -26, None),
            (pair.ours[frame], PARENTS[:NUM_BODY_JOINTS], 26, _BLUE),
        )
        for joints, parents, shift, color in views:
            across = (joints - around) @ np.array([0.8, 0, 0.6])
            points = np.stack(
                [left + shift + _SCALE * across, base - _SCALE * (joints[:, 1] - floor)]
            )
            for joint, parent in enumerate(parents):
                if parent >= 0 and np.linalg.norm(joints[joint] - joints[parent]) < _LONGEST_M:
                    is_right = color and joint in (5, 8, 11, 19, 21)
                    ends = [tuple(points[:, parent]), tuple(points[:, joint])]
                    draw.line(ends, fill=_RED if is_right else color or _GREY, width=2)
    low = base + _CURVE - 4
    for toes, width in ((pair.source_toes, 1), (pair.our_toes, 2)):
        for foot, color in enumerate((_BLUE, _RED)):
            height = toes[:, foot, 1] - floor
            across = np.linspace(0, _WIDTH, len(height))
            line = [
                (x, low - min(y, 0.5) * 2 * (_CURVE - 8))
                for x, y in zip(across, height, strict=True)
            ]
            draw.line(line, fill=color if width == 2 else _GREY, width=width)
    draw.text((4, top + 2), f"{pair.name}   fit {1000 * pair.fit_m:.0f} mm", fill=(0, 0, 0))


@click.command()
@click.argument("shared", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def main(shared: Path, out: Path) -> None:
    """Draw the sample files of SHARED into the picture OUT and print their numbers."""
    image = Image.new("RGB", (_WIDTH, (_ROW + _CURVE) * len(FILES)), "white")
    draw = ImageDraw.Draw(image)
    click.echo("file | travel m, source and ours | contact share | slip m/s | contact agrees")
    for row, name in enumerate(FILES):
        pair = read_pair(shared, name)
        draw_row(draw, pair, row * (_ROW + _CURVE))
        hips = pair.source[:, find_root(pair)]
        theirs = numbers(pair.source_toes, hips, pair.fps)
        mine = numbers(pair.our_toes, pair.ours[:, PELVIS], pair.fps)
        cells = " | ".join(f"{a:.2f} {b:.2f}" for a, b in zip(theirs, mine, strict=True))
        click.echo(f"{name} | {cells} | {agreement(pair):.2f}")
    image.quantize(32).save(out, optimize=True)


def find_root(pair: Pair) -> int:
    """The source joint nearest to our pelvis over the clip."""
    gaps = np.linalg.norm(pair.source - pair.ours[:, :1], axis=-1).mean(axis=0)
    return int(gaps.argmin())


if __name__ == "__main__":
    main()
