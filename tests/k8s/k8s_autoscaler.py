"""What Ray's own autoscaler decides for a manifest.

The RayCluster's spec goes through the code that reads it in the head pod; the endpoint's demands
come from its own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from k8s_objects import ray_cluster
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.core.generated.autoscaler_pb2 import ResourceRequest
from ray.serve import Application, Deployment
from ray_autoscaler import demand, launched

from hymotion_ray.config.fields import from_mapping
from hymotion_ray.config.serve import ServeConfig
from hymotion_ray.engine.serve.app import bind


def decide(
    document: dict[str, Any], demands: Sequence[ResourceRequest]
) -> tuple[dict[str, int], int]:
    """Workers by group that the autoscaler would have, and how many demands fit no group."""
    metadata = {**document["metadata"], "namespace": "hymotion"}
    read = _derive_autoscaling_config_from_ray_cr(
        {"metadata": metadata, "spec": ray_cluster(document)}
    )
    return launched(AutoscalingConfig(read, skip_content_hash=True), demands)


def serve_config(document: dict[str, Any]) -> ServeConfig:
    """The application's arguments in a RayService, read as strictly as the application does."""
    (application,) = yaml.safe_load(document["spec"]["serveConfigV2"])["applications"]
    return from_mapping(ServeConfig, application["args"])


def replicas(document: dict[str, Any]) -> dict[str, tuple[ResourceRequest, int, int]]:
    """For each of the endpoint's deployments: a replica's demand, and how many there may be.

    By the application's own code, from its arguments in the RayService.
    """
    found = {}
    for name, deployment in _deployments(bind(serve_config(document))).items():
        options = deployment.ray_actor_options
        scaling = deployment._deployment_config.autoscaling_config
        least = scaling.min_replicas if scaling else deployment.num_replicas
        most = scaling.max_replicas if scaling else deployment.num_replicas
        resources = {"CPU": options.get("num_cpus", 1.0), "GPU": options.get("num_gpus", 0.0)}
        fallback = [each["label_selector"] for each in options.get("fallback_strategy", [])]
        asked = {key: value for key, value in resources.items() if value}
        request = demand(asked, [options.get("label_selector", {}), *fallback])
        found[name] = request, least, most
    return found


def _deployments(root: Application) -> dict[str, Deployment]:
    """All deployments of an application, by name."""
    found: dict[str, Deployment] = {}

    def visit(node: Any) -> None:
        if isinstance(node, Application):
            found[node._bound_deployment.name] = node._bound_deployment
            visit(node._bound_deployment.init_args)
        elif isinstance(node, dict):
            visit(list(node.values()))
        elif isinstance(node, list | tuple):
            for each in node:
                visit(each)

    visit(root)
    return found
