"""A reader with chosen faults, and chunks run through the stages without a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from hymotion_ray.engine.dataset.synthetic import synthetic_clip
from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources import SourceClip, SourceFile, SourceReject


@dataclass(frozen=True)
class FolderReader:
    """Reads `*.clip` files, whose text says what their reader shall do.

    A number: that synthetic clip. `raise`, `exit`, `kill`, `hang`, `refuse`, `empty`, `nothing`: a
    fault of that kind. `late`: a clip, then an exception. `once FILE`: killed the first time only.
    """

    hang_s: float = 3600.0
    faults: dict[str, str] = field(default_factory=dict)

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
            yield synthetic_clip(np.random.default_rng(int(word)), file.name, int(word))
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


@pytest.fixture
def reader() -> FolderReader:
    return FolderReader()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder of eight clips in two sub-folders."""
    folder = tmp_path / "moves"
    for number in range(8):
        path = folder / f"set{number % 2}" / f"take{number}.clip"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    return folder
