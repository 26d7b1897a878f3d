"""A process that renders job after job holds no more memory at the end than at the start."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from test_render_stages import chunk_of

from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.render.decode import DecodeStage
from hymotion_ray.engine.render.encode import EncodeStage
from hymotion_ray.engine.render.export import ExportStage
from hymotion_ray.engine.render.model_info import ModelInfo, default_grid
from hymotion_ray.engine.render.sample import SampleStage

NUM_JOBS, WARM = 200, 40
MOST_GROWTH = 24 * 2**20


def resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_two_hundred_jobs_in_a_row_hold_no_more_memory(random_model: Path, tmp_path: Path) -> None:
    config = RenderConfig(prompts=("unused",), model=str(random_model), out=str(tmp_path / "out"))
    info = ModelInfo.read(config)
    grid = dataclasses.replace(default_grid(config.resources, has_gpus=False), rows=4)
    settings = info.stage_settings(config, grid, out=config.out, hashed_folders=False)
    stages = (
        EncodeStage(settings), SampleStage(settings), DecodeStage(info.decoder),
        ExportStage(settings),
    )  # fmt: skip
    for stage in stages:
        stage.setup()
    held: list[int] = []
    for number in range(NUM_JOBS):
        chunk = chunk_of(info, [[number], [number], [number + 1]], num_frames=20 + number % 40)
        for stage in stages:
            chunk = stage(chunk)
        held.append(resident())
    assert max(held[-WARM:]) - max(held[WARM : 2 * WARM]) < MOST_GROWTH
