"""A reader of folders whose files say what their reader shall do, faults included."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hymotion_ray.engine.dataset.synthetic import synthetic_clip
from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources import SourceClip, SourceFile, SourceReject
from hymotion_ray.motion.skeleton import MIRROR_PAIRS


@dataclass(frozen=True)
class FolderReader:
    """Reads `*.clip` files, whose text says what their reader shall do.

    Words, one after another. A number: that synthetic clip; `m` and a number: its mirror image;
    `raise`, `exit`, `refuse`, `kill`, `hang`: that fault; `part`: a reject of its own; `still`,
    `nan`: a clip that a gate holds back; `slow`: a fifth of a second.
    """

    hang_s: float = 3600.0

    def list(self, root: str) -> Iterator[SourceFile]:
        """Files of one folder, or one file."""
        top = Path(root)
        paths = sorted(top.rglob("*.*")) if top.is_dir() else [top]
        for path in paths:
            name = str(path.relative_to(top)) if top.is_dir() else path.name
            kind = "clip" if path.suffix == ".clip" else "document"
            yield SourceFile(path=str(path), name=name, kind=kind, size=path.stat().st_size)

    def read(self, file: SourceFile) -> Iterator[SourceClip | SourceReject]:
        """What the file's text asks for."""
        if file.kind == "document":
            yield SourceReject(name=file.name, code="document", message="text", is_motion=False)
            return
        for word in Path(file.path).read_text().split():
            yield from self._act(file, word)

    def _act(self, file: SourceFile, word: str) -> Iterator[SourceClip | SourceReject]:
        if word.isdigit():
            yield made_clip(int(word), file.name)
        elif word.startswith("m") and word[1:].isdigit():
            yield _mirrored(made_clip(int(word[1:]), file.name), word)
        elif word in ("still", "nan"):
            yield _spoiled(made_clip(1, file.name), word)
        elif word == "slow":
            time.sleep(0.2)
        elif word == "raise":
            raise ValueError("cannot read this")
        elif word == "refuse":
            raise SourceError("0 frames a second", "bad_fps")
        elif word == "exit":
            raise SystemExit(3)
        elif word == "kill":
            os._exit(1)
        elif word == "hang":
            time.sleep(self.hang_s)
        elif word == "part":
            yield SourceReject(name=f"{file.name}#2", code="damaged", message="second take is cut")

    def describe(self) -> dict[str, str | None]:
        """Nothing decides how its clips look."""
        return {}


def made_clip(number: int, file: str) -> SourceClip:
    """The synthetic clip that a file's text asks for by `number`."""
    return synthetic_clip(np.random.default_rng(number), file, number)


def _mirrored(clip: SourceClip, name: str) -> SourceClip:
    assert clip.body is not None
    order = list(range(22))
    for left, right in MIRROR_PAIRS[:8]:
        order[left], order[right] = right, left
    flip = np.array([1.0, -1.0, -1.0], dtype=np.float32)
    signs = flip[:, None] * flip  # a reflection of x, seen from both sides
    rotations = clip.body.rotations[:, order] * signs
    pelvis = clip.body.pelvis * np.array([-1.0, 1.0, 1.0], dtype=np.float32)
    body = dataclasses.replace(clip.body, rotations=rotations, pelvis=pelvis)
    file = clip.name.partition("#")[0]
    return dataclasses.replace(clip, name=f"{file}#{name}", body=body)


def _spoiled(clip: SourceClip, how: str) -> SourceClip:
    assert clip.body is not None
    file = clip.name.partition("#")[0]
    if how == "nan":
        positions = clip.positions.copy()
        positions[3, 4] = np.nan
        return dataclasses.replace(clip, name=f"{file}#nan", positions=positions)
    body = dataclasses.replace(
        clip.body,
        rotations=np.repeat(clip.body.rotations[:1], clip.num_frames, axis=0),
        pelvis=np.repeat(clip.body.pelvis[:1], clip.num_frames, axis=0),
    )
    return dataclasses.replace(clip, name=f"{file}#still", body=body)
