"""A folder of sources and a reader for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from folder_reader import FolderReader


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
