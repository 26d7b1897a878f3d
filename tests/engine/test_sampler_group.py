"""One sampler over several processes: the same clips, and a clear end when a process is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hymotion_ray.api import load_model
from hymotion_ray.config import Grid, SamplingConfig
from hymotion_ray.config.releases import released_network
from hymotion_ray.config.split import SplitConfig, Way
from hymotion_ray.errors import ConfigError
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.flow.stepwise import CellRun, kind_of, prepare_clip
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.split import Wire, split_heads
from hymotion_ray.text.condition import TextCondition

pytestmark = pytest.mark.ray

GRID = Grid(rows=2, text_rows=2)
ROWS = [Row(prompt=0, num_frames=24 + 4 * i, seed=i) for i in range(3)]
SAMPLING = SamplingConfig(num_steps=3, guidance_scale=2.0)


@pytest.fixture(scope="module", name="leader")
def leader_class() -> type:
    class Leader:
        """The process that a group lives in: a process has one group."""

        def __init__(self, model: str, split: SplitConfig) -> None:
            from hymotion_ray.engine.sampler_group import SamplerGroup

            self.group = SamplerGroup(model, split, precision="float32", grid=GRID)

        def sample(self, condition: TextCondition) -> list[torch.Tensor]:
            given = condition.context, condition.vector, condition.length, ROWS, SAMPLING
            return self.group.sample(*given)

        def sample_again(self, condition: TextCondition) -> list[torch.Tensor]:
            """As after numbers that were not finite."""
            given = condition.context, condition.vector, condition.length, ROWS, SAMPLING
            return self.group.in_float32().sample(*given)

        @staticmethod
        def join_and_leave(
            new_run: Callable[..., CellRun], sampler: Sampler, condition: TextCondition
        ) -> list[torch.Tensor]:
            clips = [
                prepare_clip(
                    sampler, "walk", condition.context[0], condition.vector[0, 0], 24, i, SAMPLING
                )
                for i in range(3)
            ]
            run, ended = new_run(sampler, kind_of(clips[0], sampler), full_rows=True), []
            run.add(clips[:1])
            run.step()
            run.add(clips[1:2])
            run.step()
            run.drop(clips[1:2])
            run.add(clips[2:])
            while run.clips:
                ended += [latent for _, latent in run.step()]
            return ended

        def sample_stepwise(self, condition: TextCondition) -> list[torch.Tensor]:
            """One clip after another joins a batch, and one of them leaves it half way."""
            return self.join_and_leave(self.group.new_run, self.group.sampler, condition)

        def weight_bytes(self) -> tuple[int, ...]:
            return self.group.weight_bytes

        def follower_pid(self) -> int:
            import ray

            (follower,) = self.group.followers
            return ray.get(follower.__ray_call__.remote(lambda _: os.getpid()))

    return Leader


@pytest.fixture
def lead(
    ray: ModuleType, leader: type, random_model: Path
) -> Iterator[Callable[[SplitConfig, int], Any]]:
    """Starts a leader in a placement group of so many processes."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    places = []

    def start(split: SplitConfig, size: int) -> Any:
        places.append(placement_group([{"CPU": 0.5}] * size))
        strategy = PlacementGroupSchedulingStrategy(places[-1], placement_group_bundle_index=0)
        actor = ray.remote(num_cpus=0.5)(leader).options(scheduling_strategy=strategy)
        return actor.remote(str(random_model), split)

    yield start
    for place in places:
        remove_placement_group(place)


@pytest.mark.parametrize(
    "way", ["heads", *(pytest.param(way, marks=pytest.mark.slow) for way in ("rows", "layers"))]
)
def test_a_group_samples_what_one_process_samples(
    ray: ModuleType,
    lead: Callable[[SplitConfig, int], Any],
    leader: Any,
    random_model: Path,
    way: Way,
) -> None:
    model = load_model(str(random_model), device="cpu", dtype="float32")
    condition = model.encode(["a person walks"])
    alone = model.new_sampler(GRID).sample(
        condition.context, condition.vector, condition.length, ROWS, SAMPLING
    )
    process = lead(SplitConfig(way=way, size=2, timeout_s=120.0), 2)
    for call in (process.sample, process.sample_again):
        for one, split in zip(alone, ray.get(call.remote(condition)), strict=True):
            torch.testing.assert_close(split, one, rtol=1e-4, atol=1e-4)
    if way != "rows":  # which cannot share out a batch of one row
        expected = leader.join_and_leave(CellRun, model.new_sampler(GRID), condition)
        found = ray.get(process.sample_stepwise.remote(condition))
        for one, split in zip(expected, found, strict=True):
            torch.testing.assert_close(split, one, rtol=1e-4, atol=1e-4)
    whole = sum(p.numel() * p.element_size() for p in model.network.parameters())
    shares = ray.get(process.weight_bytes.remote())
    assert sum(shares) == 2 * whole if way == "rows" else max(shares) < whole
    if way != "heads":
        return
    os.kill(ray.get(process.follower_pid.remote()), signal.SIGKILL)
    with pytest.raises(Exception, match=r"split over 2 processes is given up: process 1 died"):
        ray.get(process.sample.remote(condition))


@pytest.mark.slow
def test_a_process_that_hangs_is_given_up_after_the_timeout(
    ray: ModuleType, lead: Callable[[SplitConfig, int], Any], random_model: Path
) -> None:
    model = load_model(str(random_model), device="cpu", dtype="float32")
    condition = model.encode(["a person walks"])
    process = lead(SplitConfig(way="rows", size=2, timeout_s=5.0), 2)
    pid = ray.get(process.follower_pid.remote())
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Exception, match=r"is given up: process 1 does not answer"):
        ray.get(process.sample.remote(condition), timeout=90)


def test_a_group_without_places_is_refused(
    ray: ModuleType, lead: Callable[[SplitConfig, int], Any]
) -> None:
    process = lead(SplitConfig(way="heads", size=2), 3)
    with pytest.raises(
        Exception, match=r"a placement group of as many bundles.*this process's has"
    ):
        ray.get(process.sample.remote(None))


@pytest.mark.parametrize("name", ["1.0", "lite"])
@pytest.mark.parametrize("size", [2, 4])
def test_each_process_of_the_released_networks_holds_its_share(name: str, size: int) -> None:
    with torch.device("meta"):
        whole, shared = (MotionMMDiT(released_network(name), 360) for _ in range(2))
    split_heads(shared, _wire_of(size))
    sizes = [sum(p.numel() for p in network.parameters()) for network in (shared, whole)]
    assert sizes[0] <= (1 / size + 0.05) * sizes[1]


def _wire_of(size: int) -> Wire:
    """The wire of process 0 of so many, over which nothing is said."""
    wire = Wire.__new__(Wire)
    wire.rank, wire.size, wire.group = 0, size, None
    return wire


@pytest.mark.parametrize("text", ["heads:2", "rows:4", "layers:2:4", "layers:4:8"])
def test_a_split_is_read_as_it_is_written(text: str) -> None:
    assert str(SplitConfig.parse(text)) == text


@pytest.mark.parametrize("text", ["heads", "2", "heads:two", "heads:2:4", "layers:2:4:8", "odd:2"])
def test_what_is_no_split_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="WAY:SIZE such as heads:2"):
        SplitConfig.parse(text)


def test_a_split_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"split\.size is 1; allowed: 2 to 64"):
        SplitConfig(way="heads", size=1)
