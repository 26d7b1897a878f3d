"""What a training run expects of itself, and a plan's settings between preset and options."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hymotion_ray.cli_train import train_config
from hymotion_ray.config.releases import released_network
from hymotion_ray.config.training import TrainConfig
from hymotion_ray.engine.cards import Card
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.train.expected import expected_training
from hymotion_ray.errors import ConfigError
from hymotion_ray.planning.carried import PlanFile, read_plan
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.plan import Request, make_training_plan, parse_gpus

LITE = released_network("lite")
CLUSTER = ClusterInfo(num_cpus=8, total_cpus=8, num_gpus=2, num_nodes=1, started_here=False)
H200 = Card("NVIDIA H200", int(139.8 * 2**30))
A10 = Card("NVIDIA A10", int(22.1 * 2**30))


def config(*assignments: str, **options: object) -> TrainConfig:
    given = {"data": "/shards", "out": "/run", "preset": "lite", **options}
    return train_config({**given, "assignments": assignments})


def plan_file(path: Path, gpus: str = "A10:2") -> PlanFile:
    catalogue = load_catalogue()
    request = Request(network=LITE, model_name="lite", gpus=parse_gpus(gpus, catalogue))
    path.write_text(json.dumps(make_training_plan(request, catalogue)))
    return read_plan(str(path), "train")


def test_a_plan_stands_between_the_preset_and_what_is_given(tmp_path: Path) -> None:
    plan = plan_file(tmp_path / "plan.json")
    options = {"data": "/shards", "out": "/run", "preset": "lite"}
    planned = train_config(dict(options), plan.assignments())
    assert planned.workers.num_workers == "2"
    assert planned.micro_batch == plan.settings["micro_batch"]
    own = train_config({**options, "micro_batch": 3, "num_workers": "1"}, plan.assignments())
    assert (own.micro_batch, own.workers.num_workers) == (3, "1")
    with pytest.raises(ConfigError, match="one to train; allowed here: one to render"):
        read_plan(plan.path, "render")


def test_the_slowest_card_sets_the_pace_and_unknown_ones_are_not_guessed() -> None:
    two = config(num_workers="2")

    def expected(*cards: Card, settings: TrainConfig = two):
        return expected_training(settings, LITE, CLUSTER, cards, uses_gpus=True)

    fast, mixed, slow = expected(H200, H200), expected(H200, A10), expected(A10, A10)
    assert fast.clips_per_s > mixed.clips_per_s == slow.clips_per_s
    assert fast.usd_per_hour is None  # nobody rents out a single one at a public price
    assert slow.usd_per_hour > 0
    again = dataclasses.replace(
        two, parallel=dataclasses.replace(two.parallel, gradient_checkpointing=True)
    )
    assert expected(A10, A10, settings=again).clips_per_s < slow.clips_per_s
    assert expected(A10, A10, settings=again).memory_gib < slow.memory_gib
    assert expected(A10, Card("a card of tomorrow", 2**40)) is None


def test_cores_that_are_not_there_train_nothing() -> None:
    def expected(workers: str):
        found = expected_training(config(num_workers=workers), LITE, CLUSTER, [], uses_gpus=False)
        assert found is not None
        return found.clips_per_s

    assert expected("8") == pytest.approx(8 * expected("1"))
    assert expected("16") == expected("8")


def test_a_network_too_small_for_its_card_takes_its_kernels_start_and_its_readers() -> None:
    given = ("parallel.precision=bfloat16", "parallel.cuda_graphs=true")
    readers = ("input.reader=processes", "input.readers=12")
    settings = config(
        *given, *readers, preset="tiny", global_batch=64, micro_batch=64, num_workers="1"
    )
    network = dataclasses.replace(LITE, feat_dim=160, num_layers=6, num_heads=5)

    def seconds(settings: TrainConfig) -> float:
        expected = expected_training(settings, network, CLUSTER, [H200], uses_gpus=True)
        assert expected is not None
        beside = expected.beside(clips=12_000 * 64, seconds=316.8, memory_bytes=None)
        return beside["seconds"]["predicted"]

    assert seconds(settings) == pytest.approx(316.8, rel=0.15)
    local = dataclasses.replace(settings.input, reader="local")
    assert 200 < seconds(dataclasses.replace(settings, input=local)) < seconds(settings)
    eager = dataclasses.replace(settings.parallel, cuda_graphs=False)
    assert seconds(dataclasses.replace(settings, parallel=eager)) > seconds(settings)
