"""Tiny text models that the tests of this room share, and the encoder loaded from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hymotion_ray.config import TextConfig
from hymotion_ray.config.text import TextPlacement
from hymotion_ray.text.encoder import TextEncoder
from hymotion_ray.text.load import load_encoder


@pytest.fixture(scope="session", params=[1, 4], ids=["1 row", "4 rows"])
def encoder(request: pytest.FixtureRequest, qwen3: Path, clip: Path) -> TextEncoder:
    """The encoder of the tiny models, at one row a call and at several."""
    return load_encoder(
        TextConfig(llm_path=str(qwen3), clip_path=str(clip)),
        "unused",
        placement=TextPlacement(rows=request.param),
    )
