"""Turns captioned DeepMimic clips into tracks that training windows are cut from.

Knows how a short clip becomes seconds of motion (cycles repeat, actions repeat after a pause or end
in a held pose), how it is varied (speed, mirror) and which captions belong to it. Does not know
batches, normalisation or networks.

A captions file is CSV with the columns file, use, turn and caption. `file` names a clip of the
data folder; `use` says how it becomes seconds of motion: `cycle` goes on without a stop, `action`
is done again after a pause, `hold` keeps its last pose. `turn` is empty, or one of straight, left,
right: then the caption holds only for windows in which the body turns so.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hymotion_ray.errors import InputError
from hymotion_ray.formats.sources.deepmimic import DeepMimicClip, read_deepmimic
from hymotion_ray.motion.features import encode_features, mirror
from hymotion_ray.motion.retarget import retarget
from hymotion_ray.motion.skeleton import Skeleton

USES = ("cycle", "action", "hold")
TURNS = ("straight", "left", "right")
FPS = 30
MIN_FRAMES = 20
TRACK_SECONDS = 13.0
"""Length that short clips are extended to: the longest window, and room to start late in it."""
SPEEDS = (0.9, 1.0, 1.1)
PAUSES = (0.3, 0.8)
"""Seconds of standing between repeats of an action."""
ACTION_STARTS = 6
"""Windows of an action start within its first frames, so that a caption's action is whole."""
CYCLE_BLEND, ACTION_BLEND, FREE_BLEND = 0.15, 0.3, 0.5
"""Seconds in which a clip eases into its start: cycles, actions that end as they began, others."""


@dataclass(frozen=True, eq=False)
class Track:
    """One stretch of motion with its captions.

    features (L,201) un-normalised, on the floor but not turned or moved to a window's start;
    captions[i] are those of windows that go TURNS[i]; windows start at frames 0 to num_starts - 1
    and hold at least min_frames where they can.
    """

    clip: str
    features: Tensor
    captions: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    num_starts: int
    min_frames: int


@dataclass(frozen=True)
class Captions:
    """What is said of one clip: its use, and (caption, turn) pairs."""

    use: str
    texts: tuple[tuple[str, str], ...]


def read_captions(path: str | Path, folder: Path) -> dict[str, Captions]:
    """Captions by clip file name, for files that `folder` holds; `InputError` names a bad line."""
    captions: dict[str, Captions] = {}
    with open(path, encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            name, text = Path(row.get("file") or "").name, (row.get("caption") or "").strip()
            use, turn = (row.get("use") or "").strip(), (row.get("turn") or "").strip()
            known = captions.get(name, Captions(use, ()))
            if not name or not text or turn not in ("", *TURNS) or use not in USES:
                raise InputError(
                    f"{path}:{number} is {row}; expected: file, use ({', '.join(USES)}), turn "
                    f"(empty or {', '.join(TURNS)}) and caption"
                )
            if use != known.use:
                raise InputError(
                    f"{path}:{number} uses {name} as {use}, a line above as {known.use}"
                )
            captions[name] = Captions(use, (*known.texts, (text, turn)))
    found = {name: rows for name, rows in captions.items() if (folder / name).is_file()}
    if not found:
        raise InputError(f"{path} names no file of {folder}; give the folder that holds the clips")
    return found


def build_tracks(
    folder: str | Path, captions_path: str | Path, skeleton: Skeleton
) -> tuple[Track, ...]:
    """Tracks of every captioned clip at every speed and pause and in both mirrors."""
    folder = Path(folder)
    tracks: list[Track] = []
    for name, captions in read_captions(captions_path, folder).items():
        clip = read_deepmimic(folder / name)
        for speed in SPEEDS:
            for extended, num_starts, min_frames in _extended(clip, captions.use, speed):
                frames = extended.resample(FPS / speed).world_frames()
                motion = retarget(frames, skeleton, FPS).motion
                shown = (motion.rot6d, motion.transl)
                for mirrored in (False, True):
                    rot6d, transl = mirror(*shown, skeleton) if mirrored else shown
                    tracks.append(
                        Track(
                            clip=Path(name).stem,
                            features=encode_features(rot6d, transl, skeleton),
                            captions=_captions_by_turn(captions.texts, mirrored),
                            num_starts=max(1, min(num_starts, len(transl) - min_frames)),
                            min_frames=min_frames,
                        )
                    )
    return tuple(tracks)


def _extended(
    clip: DeepMimicClip, use: str, speed: float
) -> Iterable[tuple[DeepMimicClip, int, int]]:
    """A clip as seconds of motion: (clip, frames a window may start at, fewest frames of it)."""
    seconds = TRACK_SECONDS * speed
    clip_frames = math.ceil(clip.duration / speed * FPS)
    if clip.duration >= seconds:
        yield clip, clip_frames, MIN_FRAMES
    elif use == "cycle":
        count = math.ceil(seconds / clip.duration) + 1
        yield clip.repeated(count, blend=CYCLE_BLEND), clip_frames, MIN_FRAMES
    elif use == "hold":
        yield clip.held(seconds - clip.duration), ACTION_STARTS, clip_frames
    else:
        for pause in PAUSES:
            count = math.ceil(seconds / (clip.duration + pause * speed)) + 1
            blend = ACTION_BLEND if clip.loops else FREE_BLEND
            repeated = clip.repeated(count, blend=blend, pause=pause * speed)
            yield repeated, ACTION_STARTS, clip_frames


_SWAPS = {"left": "right", "right": "left", "clockwise": "counterclockwise"}
_SWAPS |= {"counterclockwise": "clockwise"}


def mirror_words(text: str) -> str:
    """The caption of a mirrored clip: left and right, clockwise and counterclockwise swapped."""
    return re.sub(r"[a-z]+", lambda m: _SWAPS.get(m.group(), m.group()), text)


def _captions_by_turn(
    rows: tuple[tuple[str, str], ...], mirrored: bool
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Captions that hold whichever way a window turns, and those of its own turn, for each turn.

    A caption with a turn is chosen by what the mirrored window really does, so its words stay. A
    turn that no caption speaks of gets them all.
    """
    always = tuple(mirror_words(text) if mirrored else text for text, turn in rows if not turn)
    every = tuple(text for text, _ in rows)
    by_turn = [always + tuple(text for text, turn in rows if turn == wanted) for wanted in TURNS]
    return by_turn[0] or every, by_turn[1] or every, by_turn[2] or every
