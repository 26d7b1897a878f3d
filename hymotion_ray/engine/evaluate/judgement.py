"""Which share of a prompt's clips does what it asks for, beside chance and beside real motion.

Knows prompts with their actions, rows of statistics, and captioned clips of a reference. Chance is
how often clips of other actions' prompts pass the same test; the baseline takes, for each prompt,
the real clips whose caption is nearest. Ray-free.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
import torch

from hymotion_ray.engine.evaluate.source import Clip, Piece, Reject, read_piece
from hymotion_ray.errors import InputError
from hymotion_ray.formats.atomic import read_bytes
from hymotion_ray.motion.metrics_actions import ACTIONS, STATISTIC_NAMES, Statistics, statistics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import rot6d_to_matrix, yaw_matrix
from hymotion_ray.motion.skeleton import PELVIS
from hymotion_ray.text.static import StaticEncoder

WINDOW_SECONDS = 5.0
"""Length that the tests are made for; shorter real clips are played again until they have it."""
_BATCH = 256


@dataclass(frozen=True)
class TestPrompt:
    """A sentence, and the action that its clips must show."""

    __test__ = False  # no class of tests, whatever pytest makes of its name

    text: str
    action: str


@dataclass
class Judged:
    """One prompt's clips."""

    prompt: TestPrompt
    num_clips: int = 0
    num_passed: int = 0
    chance: float | None = None
    """Share of the clips of other actions' prompts that pass; None without any."""
    nearest: float | None = None
    """Share of the nearest real clips' windows that pass; None without a reference."""
    nearest_caption: str = ""

    @property
    def share(self) -> float | None:
        """Share of the prompt's clips that pass."""
        return self.num_passed / self.num_clips if self.num_clips else None


def default_prompts() -> str:
    """Path of the built-in test prompts."""
    return str(files("hymotion_ray").joinpath("assets", "evaluate", "prompts.csv"))


def read_test_prompts(path: str) -> list[TestPrompt]:
    """Prompts with actions of a CSV file with the columns prompt (or text) and action.

    A file of another kind, or without the column action, has none. `InputError` for an action that
    there is no test of.
    """
    if not path.lower().endswith(".csv"):
        return []
    reader = csv.DictReader(io.StringIO(read_bytes(path).decode("utf-8-sig")))
    found = []
    for number, row in enumerate(reader, start=2):
        text = (row.get("prompt") or row.get("text") or "").strip()
        action = (row.get("action") or "").strip()
        if not text or not action:
            continue
        if action not in ACTIONS:
            raise InputError(
                f"{path}:{number}: action is {action!r}; allowed: {', '.join(ACTIONS)}, or nothing"
            )
        found.append(TestPrompt(text, action))
    return found


def judge(prompts: Sequence[TestPrompt], rows: Iterable[dict[str, list[Any]]]) -> list[Judged]:
    """The judgement of each prompt from batches of rows with `text` and the statistics."""
    judged = {prompt.text: Judged(prompt) for prompt in prompts}
    actions = {prompt.action for prompt in prompts}
    passed: dict[tuple[str, str], int] = defaultdict(int)
    num_of: dict[str, int] = defaultdict(int)
    for batch in rows:
        for k, text in enumerate(batch["text"]):
            own = judged.get(text)
            if own is None:
                continue
            found = Statistics(**{name: batch[f"does_{name}"][k] for name in STATISTIC_NAMES})
            num_of[own.prompt.action] += 1
            own.num_clips += 1
            own.num_passed += ACTIONS[own.prompt.action][1](found)
            for action in actions - {own.prompt.action}:
                passed[own.prompt.action, action] += ACTIONS[action][1](found)
    for own in judged.values():
        action = own.prompt.action
        others = sum(num for name, num in num_of.items() if name != action)
        if others:
            own.chance = sum(passed[name, action] for name in actions - {action}) / others
    return list(judged.values())


def add_nearest(judged: Sequence[Judged], pieces: Iterator[Piece], encoder: StaticEncoder) -> None:
    """Put the nearest real clips' shares into `judged`, from a reference read as a stream.

    Near is the cosine of the built-in word vectors. Of equally near captions the first counts, with
    all clips that carry it.
    """
    nearest = _Nearest(judged, encoder)
    waiting: list[Clip] = []
    for piece in pieces:
        for clip in read_piece(piece):
            if isinstance(clip, Reject) or not clip.texts:
                continue
            waiting.append(clip)
            if len(waiting) == _BATCH:
                nearest.look_at(waiting)
                waiting = []
    if waiting:
        nearest.look_at(waiting)
    nearest.finish()


@dataclass
class _Best:
    similarity: float = -2.0
    caption: str = ""
    passes: list[bool] = field(default_factory=list)


class _Nearest:
    def __init__(self, judged: Sequence[Judged], encoder: StaticEncoder) -> None:
        self.judged, self.encoder = judged, encoder
        self.asked = self._vectors([own.prompt.text for own in judged])
        self.best = [_Best() for _ in judged]

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        vectors = self.encoder.encode(list(texts)).vector[:, 0].float()
        return torch.nn.functional.normalize(vectors, dim=-1)

    def look_at(self, clips: Sequence[Clip]) -> None:
        owners = [(text, clip) for clip in clips for text in dict.fromkeys(clip.texts)]
        near = (self.asked @ self._vectors([text for text, _ in owners]).T).tolist()
        windows: dict[int, list[Statistics]] = {}
        for own, best, similarities in zip(self.judged, self.best, near, strict=True):
            for similarity, (text, clip) in zip(similarities, owners, strict=True):
                if text != best.caption:
                    if similarity <= best.similarity + 1e-6:
                        continue
                    best.similarity, best.caption, best.passes = similarity, text, []
                if id(clip) not in windows:
                    windows[id(clip)] = [statistics(window) for window in windows_of(clip.motion)]
                test = ACTIONS[own.prompt.action][1]
                best.passes += [test(found) for found in windows[id(clip)]]

    def finish(self) -> None:
        for own, best in zip(self.judged, self.best, strict=True):
            if best.passes:
                own.nearest, own.nearest_caption = float(np.mean(best.passes)), best.caption


def windows_of(motion: Motion) -> list[Motion]:
    """A motion in windows of five seconds; one that is shorter, played on until it has them."""
    num_frames = round(WINDOW_SECONDS * motion.fps)
    if motion.num_frames < num_frames:
        return [repeated(motion, num_frames)]
    starts = range(0, motion.num_frames - num_frames + 1, num_frames)
    return [_cut(motion, start, start + num_frames) for start in starts]


def repeated(motion: Motion, num_frames: int) -> Motion:
    """A motion played again from where it ends, facing as it then does, up to `num_frames`."""
    root = rot6d_to_matrix(motion.rot6d[:, PELVIS].double())
    headings = torch.atan2(-root[:, 2, 0], root[:, 0, 0])
    turn = yaw_matrix(headings[-1] - headings[0]).double()
    rest = torch.from_numpy(motion.skeleton.rest[PELVIS].copy()).double()
    rot6d, place = [motion.rot6d.double()], [motion.transl.double() + rest]
    while sum(map(len, place)) < num_frames:
        last, first = place[-1][-1], place[-1][0]
        moved = (place[-1] - first) @ turn.T
        moved[:, [0, 2]] += last[[0, 2]]
        moved[:, 1] += first[1]
        again = rot6d[-1].clone()
        again[:, PELVIS] = (turn @ again[:, PELVIS].unflatten(-1, (3, 2))).flatten(-2)
        rot6d.append(again)
        place.append(moved)
    transl = torch.cat(place)[:num_frames] - rest
    return Motion.from_rotations(torch.cat(rot6d)[:num_frames], transl, motion.skeleton, motion.fps)


def _cut(motion: Motion, start: int, stop: int) -> Motion:
    return Motion(
        motion.rot6d[start:stop],
        motion.transl[start:stop],
        motion.joints[start:stop],
        motion.fps,
        motion.skeleton,
    )
