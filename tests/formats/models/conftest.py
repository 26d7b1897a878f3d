"""Copies of a golden model that the tests of this room damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hymotion_ray.formats.models.checkpoint import read_model, write_model

RELEASE = Path(__file__).parents[2] / "golden" / "release_like"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Give a release folder."""
    ignore = shutil.ignore_patterns("expected.safetensors")
    return Path(shutil.copytree(RELEASE, tmp_path / "release", ignore=ignore))


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """Give the same model as a converted folder, with a file in its text folder."""
    write_model(read_model(RELEASE), tmp_path / "converted")
    (tmp_path / "converted" / "text").mkdir()
    (tmp_path / "converted" / "text" / "vectors.safetensors").write_bytes(b"123")
    return tmp_path / "converted"
