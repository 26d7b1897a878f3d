"""Where the endpoint's parts are put and how their number follows the queue, as Serve takes it."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
from ray.serve.config import DEFAULT_METRICS_INTERVAL_S

from hymotion_ray.config.serve import (
    EncoderConfig,
    HttpConfig,
    PoolConfig,
    ScaleConfig,
    ServeConfig,
    ServedModel,
)
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.serve.app import bind
from hymotion_ray.engine.serve.deployments import sampler_deployment
from hymotion_ray.engine.serve.server import fit_to
from hymotion_ray.errors import ConfigError

PLACED = {"labels": ("pool=cpu",), "fallback": (("pool=spare", "zone=!a"),)}


def test_http_processes_go_where_their_labels_say() -> None:
    options = bind(ServeConfig(http=HttpConfig(**PLACED)))._bound_deployment.ray_actor_options
    assert options["label_selector"] == {"pool": "cpu"}
    assert options["fallback_strategy"] == [{"label_selector": {"pool": "spare", "zone": "!a"}}]
    anywhere = bind(ServeConfig())._bound_deployment.ray_actor_options
    assert not {"label_selector", "fallback_strategy"} & set(anywhere)


@pytest.mark.parametrize("kind", [HttpConfig, EncoderConfig, PoolConfig])
def test_labels_have_a_key_and_a_value(kind) -> None:
    for label in ("cpu", "=cpu", ""):
        with pytest.raises(ConfigError, match=r"labels.*KEY=VALUE"):
            kind(labels=(label,))
        with pytest.raises(ConfigError, match=r"labels.*KEY=VALUE"):
            kind(fallback=((label,),))
    kind(labels=("a=",))


@pytest.mark.parametrize("delay", [0.5, 5.0, 20.0, 600.0])
def test_the_look_back_holds_a_whole_interval_of_metrics(delay: float) -> None:
    pool = PoolConfig(scale=ScaleConfig(min_replicas=0, max_replicas=3, up_delay_s=delay))
    served = ServedModel(model="tiny", pools=(pool,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = sampler_deployment(ServeConfig(models=(served,)), served, pool, "Sampler")
    scaling = made._bound_deployment._deployment_config.autoscaling_config
    assert scaling.look_back_period_s > DEFAULT_METRICS_INTERVAL_S
    assert scaling.look_back_period_s <= 30.0


def test_a_number_of_replicas_that_is_asked_for_is_kept() -> None:
    here = ClusterInfo(num_cpus=8, total_cpus=10, num_gpus=0, num_nodes=1, started_here=True)
    joined = dataclasses.replace(here, started_here=False)

    def number(scale: ScaleConfig | None, cluster: ClusterInfo) -> int:
        served = ServedModel(model="tiny", pools=(PoolConfig(scale=scale),))
        settled = fit_to(ServeConfig(models=(served,)), cluster, check_models=False)
        made = sampler_deployment(settled, served, settled.models[0].pools[0], "Sampler")
        return made._bound_deployment.num_replicas

    assert number(None, here) == 8
    assert number(ScaleConfig(), here) == 1
    assert number(None, joined) == 1


def test_a_split_replica_has_places_for_all_its_processes() -> None:
    pool = PoolConfig(
        split=SplitConfig(way="heads", size=2), gpus=1.0, cpus=2.0, labels=("pool=a10",)
    )
    served = ServedModel(model="tiny", pools=(pool,))
    made = sampler_deployment(ServeConfig(models=(served,)), served, pool, "Sampler")
    settings = made._bound_deployment._replica_config
    assert settings.placement_group_bundles == [{"CPU": 2.0, "GPU": 1.0}] * 2
    assert settings.placement_group_bundle_label_selector == [{"pool": "a10"}] * 2
    assert made._bound_deployment.ray_actor_options["num_gpus"] == 1.0


def test_a_split_that_serving_cannot_carry_out_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pool\.split\.way is 'rows'; allowed: heads, layers"):
        PoolConfig(split=SplitConfig(way="rows", size=2))
    with pytest.raises(ConfigError, match="without offload and fallback"):
        PoolConfig(split=SplitConfig(way="heads", size=2), offload="layers")
