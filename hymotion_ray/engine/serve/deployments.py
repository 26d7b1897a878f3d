"""Encoders and samplers as Serve deployments: where they run, how many, how they are replaced."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import DEFAULT_METRICS_INTERVAL_S, AutoscalingConfig, AutoscalingPolicy

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.serve import PoolConfig, ScaleConfig, Selector, ServeConfig, ServedModel

_ONGOING = 10_000
"""Requests a replica at once: what waits is limited by predicted time, not by number."""
_HEALTH_PERIOD_S = 5.0
_HEALTH_TIMEOUT_S = 60.0
_SHORTEST_LOOK_BACK_S = DEFAULT_METRICS_INTERVAL_S + 1.0
"""Ray tells its controller of queues every `DEFAULT_METRICS_INTERVAL_S`; a shorter look back would
see only the end of each interval, and later versions of Ray refuse it."""
_LONGEST_LOOK_BACK_S = 30.0
POLICY = "hymotion_ray.engine.serve.scaling:replicas_for_queue"


def encoder_deployment(served: ServedModel, name: str) -> Application:
    """The text encoder of a model."""
    config = served.encoder
    deploy = serve.deployment(
        name=name,
        max_ongoing_requests=_ONGOING,
        ray_actor_options=actor_options(
            config.cpus, config.gpus or 0.0, config.labels, config.fallback
        ),
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.2,
        **_number(config.scale, by_queue=False),
    )
    application: Application = deploy(_replica("EncoderReplica")).bind(
        served.model, to_mapping(config)
    )
    return application


def sampler_deployment(
    config: ServeConfig, served: ServedModel, pool: PoolConfig, name: str
) -> Application:
    """One pool of samplers of a model."""
    deploy = serve.deployment(
        name=name,
        max_ongoing_requests=_ONGOING,
        ray_actor_options=actor_options(
            pool.cpus, pool.gpus or 0.0, () if pool.split else pool.labels, pool.fallback
        ),
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=config.http.drain_s,
        graceful_shutdown_wait_loop_s=0.2,
        **_group(pool),
        **_number(pool.scale or ScaleConfig(), by_queue=True),
    )
    application: Application = deploy(_replica("SamplerReplica")).bind(
        served.model, to_mapping(pool), to_mapping(config.queue), to_mapping(config.warm_up)
    )
    return application


def _group(pool: PoolConfig) -> dict[str, Any]:
    """Places for all processes of a split replica, side by side where there is room."""
    if pool.split is None:
        return {}
    one = {"CPU": 1.0 if pool.cpus is None else pool.cpus, "GPU": pool.gpus or 0.0}
    bundle = {name: amount for name, amount in one.items() if amount}
    options: dict[str, Any] = {
        "placement_group_bundles": [bundle] * pool.split.size,
        "placement_group_strategy": "PACK",
    }
    if pool.labels:
        selectors = [label_selector(pool.labels)] * pool.split.size
        options["placement_group_bundle_label_selector"] = selectors
    return options


def _replica(name: str) -> type:
    from hymotion_ray.engine.serve import replicas

    found: type = getattr(replicas, name)
    return found


def actor_options(
    cpus: float | None, gpus: float, labels: Selector, fallback: tuple[Selector, ...]
) -> dict[str, Any]:
    """What a replica takes, and on which nodes it may be, as Ray takes it; no CPUs named: one."""
    options: dict[str, Any] = {"num_cpus": 1.0 if cpus is None else cpus, "num_gpus": gpus}
    if labels:
        options["label_selector"] = label_selector(labels)
    if fallback:
        options["fallback_strategy"] = [{"label_selector": label_selector(s)} for s in fallback]
    return options


def label_selector(labels: Selector) -> dict[str, str]:
    """KEY=VALUE texts as Ray takes them."""
    return dict(label.split("=", 1) for label in labels)


def _number(scale: ScaleConfig, *, by_queue: bool) -> dict[str, Any]:
    """A fixed number of replicas, or one that follows the queue."""
    if scale.min_replicas == scale.max_replicas:
        return {"num_replicas": scale.max_replicas}
    settings: dict[str, Any] = {
        "min_replicas": scale.min_replicas,
        "max_replicas": scale.max_replicas,
        "initial_replicas": max(scale.min_replicas, 0),
        "upscale_delay_s": scale.up_delay_s,
        "downscale_delay_s": scale.down_delay_s,
        "look_back_period_s": min(
            _LONGEST_LOOK_BACK_S, max(_SHORTEST_LOOK_BACK_S, scale.up_delay_s)
        ),
    }
    if by_queue:
        settings["policy"] = AutoscalingPolicy(
            policy_function=POLICY, policy_kwargs={"target_queue_s": scale.target_queue_s}
        )
    return {"autoscaling_config": AutoscalingConfig(**settings)}
