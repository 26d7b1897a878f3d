"""One sampler over several processes: the same clips, and a clear end when a process is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hymotion_ray.api import load_model
from hymotion_ray.config import Grid, SamplingConfig
from hymotion_ray.config.split import SplitConfig, Way
from hymotion_ray.errors import ConfigError
from hymotion_ray.flow import Row

pytestmark = pytest.mark.ray

GRID = Grid(rows=2, text_rows=2)
ROWS = [Row(prompt=0, num_frames=24 + 4 * i, seed=i) for i in range(3)]
SAMPLING = SamplingConfig(num_steps=3, guidance_scale=2.0)


@pytest.fixture(scope="module", name="leader")
def leader_class(ray: ModuleType):
    @ray.remote(num_cpus=0.5)
    class Leader:
        """The process that a group lives in: a process has one group."""

        def __init__(self, model: str, way: str) -> None:
            from hymotion_ray.engine.sampler_group import SamplerGroup

            self.group = SamplerGroup(
                model,
                SplitConfig(way=way, size=2, timeout_s=120.0),
                precision="float32",
                grid=GRID,
                num_gpus=0,
                num_cpus=0.5,
            )

        def sample(self, condition) -> list:
            return self.group.sample(
                condition.context, condition.vector, condition.length, ROWS, SAMPLING
            )

        def follower_pid(self) -> int:
            import ray

            (follower,) = self.group.followers
            return ray.get(follower.__ray_call__.remote(lambda _: os.getpid()))

    return Leader


@pytest.mark.parametrize("way", ["heads", "rows", "layers"])
def test_a_group_samples_what_one_process_samples(
    ray: ModuleType, leader, random_model: Path, way: Way
) -> None:
    model = load_model(str(random_model), device="cpu", dtype="float32")
    condition = model.encode(["a person walks"])
    alone = model.new_sampler(GRID).sample(
        condition.context, condition.vector, condition.length, ROWS, SAMPLING
    )
    process = leader.remote(str(random_model), way)
    try:
        for one, split in zip(alone, ray.get(process.sample.remote(condition)), strict=True):
            torch.testing.assert_close(split, one, rtol=1e-4, atol=1e-4)
        if way != "heads":
            return
        os.kill(ray.get(process.follower_pid.remote()), signal.SIGKILL)
        with pytest.raises(Exception, match=r"split over 2 processes is given up: process 1 died"):
            ray.get(process.sample.remote(condition))
    finally:
        ray.kill(process)


def test_a_split_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"split\.size is 1; allowed: 2 to 64"):
        SplitConfig(way="heads", size=1)
