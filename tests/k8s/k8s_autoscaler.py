"""What Ray's own autoscaler decides for a manifest, without a cluster, in milliseconds.

The RayCluster's spec goes through the code that reads it in the head pod, and the demands through
the scheduler of autoscaler v2. Both are private to Ray; constraints.txt pins the version.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from k8s_objects import ray_cluster
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler.v2.event_logger import AutoscalerEventLogger
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import ResourceRequest
from ray.core.generated.common_pb2 import LabelSelectorOperator
from ray.serve import Application, Deployment

from hymotion_ray.config.fields import from_mapping
from hymotion_ray.config.serve import ServeConfig
from hymotion_ray.engine.serve.app import bind

HEAD = "headgroup"
Selectors = Sequence[Mapping[str, str]]
"""Alternatives in their order, each with the labels that must all hold."""


class _Silent(AutoscalerEventLogger):
    def __init__(self) -> None:
        pass

    def log_cluster_scheduling_update(self, *args: Any, **options: Any) -> None:
        """Tell nobody: there is no head to tell."""


def demand(resources: Mapping[str, float], selectors: Selectors = ()) -> ResourceRequest:
    """A task's or replica's demand of one node."""
    made = [[_constraint(*pair) for pair in labels.items()] for labels in selectors if labels]
    return ResourceRequestUtil.make(dict(resources), None, made or None)


def _constraint(key: str, value: str) -> tuple[str, int, list[str]]:
    negated, value = value.startswith("!"), value.removeprefix("!")
    values = re.fullmatch(r"in\((.*)\)", value)
    operator = "LABEL_OPERATOR_NOT_IN" if negated else "LABEL_OPERATOR_IN"
    listed = values[1].split(",") if values else [value]
    return key, LabelSelectorOperator.Value(operator), listed


def decide(
    document: dict[str, Any], demands: Sequence[ResourceRequest]
) -> tuple[dict[str, int], int]:
    """Workers by group that the autoscaler would have, and how many demands fit no group."""
    metadata = {**document["metadata"], "namespace": "hymotion"}
    spec = ray_cluster(document)
    read = _derive_autoscaling_config_from_ray_cr({"metadata": metadata, "spec": spec})
    config = AutoscalingConfig(read, skip_content_hash=True)
    reply = ResourceDemandScheduler(_Silent()).schedule(
        SchedulingRequest(
            node_type_configs=config.get_node_type_configs(),
            max_num_nodes=config.get_max_num_nodes(),
            disable_launch_config_check=True,
            resource_requests=ResourceRequestUtil.group_by_count(list(demands)),
        )
    )
    launched: Counter[str] = Counter()
    for request in reply.to_launch:
        launched[request.instance_type] += request.count
    launched.pop(HEAD, None)
    return dict(launched), len(reply.infeasible_resource_requests)


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
