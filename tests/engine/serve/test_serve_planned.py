"""A plan's settings in an endpoint's config, and what the endpoint says of itself at its end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hymotion_ray.api import load_model
from hymotion_ray.config.releases import released_network
from hymotion_ray.config.serve import EncoderConfig, PoolConfig, ServeConfig, ServedModel
from hymotion_ray.engine.cards import Card
from hymotion_ray.engine.serve.carried import (
    carried_out,
    expected_serving,
    parse_counters,
    words_expected,
    words_served,
)
from hymotion_ray.engine.serve.metrics import Metrics
from hymotion_ray.errors import ConfigError
from hymotion_ray.planning.carried import PlanFile, parse_plan
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.plan import Request, make_plan

A10 = Card("NVIDIA A10", int(22.1 * 2**30))


def plan_of(network) -> PlanFile:
    request = Request(network=network, model_name="own", has_encoder=False, gpus={"A10": 2})
    plan = make_plan(request, load_catalogue()).to_mapping()
    plan["settings"]["resources.encoder_gpus"] = 0.6
    return parse_plan(json.dumps(plan), "plan.json", "render")


@pytest.fixture
def config(random_model: Path) -> ServeConfig:
    return ServeConfig(models=(ServedModel(model=str(random_model)),))


def test_a_plan_settles_rows_and_the_encoders_share(
    config: ServeConfig, random_model: Path
) -> None:
    plan = plan_of(load_model(random_model).config.network)
    (served,) = carried_out(config, plan).models
    assert (served.encoder.gpus, served.pools[0].rows) == (0.6, 64)
    own = dataclasses.replace(
        config.models[0], encoder=EncoderConfig(gpus=0.2), pools=(PoolConfig(rows=8),)
    )
    given = dataclasses.replace(config, models=(own,))
    assert carried_out(given, plan) == given
    with pytest.raises(ConfigError, match=r"plan\.json is a plan for a network of feat_dim 1280"):
        carried_out(config, plan_of(released_network("1.0")))


def test_an_endpoint_expects_by_its_cards_and_counts_what_it_served(config: ServeConfig) -> None:
    on_cpu, on_gpu = expected_serving(config, []), expected_serving(config, [A10])
    assert on_cpu is not None
    assert on_gpu is not None
    assert on_gpu.memory_gib > 0
    assert "USD an hour" in words_expected(on_gpu)
    assert expected_serving(config, [Card("a card of tomorrow", 2**40)]) is None
    plan = plan_of(released_network("1.0"))
    expected = expected_serving(config, [A10], plan)
    assert expected is not None
    assert expected.clips_per_s == pytest.approx(plan.expected.clips_per_s / 2)
    metrics = Metrics(to_ray=False)
    for pool, number in (("a", 3), ("b", 4)):
        metrics.count("clips", {"pool": pool, "key": ""}, number)
        metrics.count("gpu_seconds", {"pool": pool, "key": ""}, 0.5)
    assert parse_counters(metrics.text()) == (7, 1.0)
    assert words_served(on_cpu, 7, 1.0, 60.0).startswith("7 clips served in 1.0 s of samplers'")
