"""What Ray's own autoscaler would start for some demands, without a cluster, in milliseconds.

The scheduler of autoscaler v2 is private to Ray; constraints.txt pins the version.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ray.autoscaler.v2.event_logger import AutoscalerEventLogger
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import ResourceRequest
from ray.core.generated.common_pb2 import LabelSelectorOperator

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


def launched(
    config: AutoscalingConfig, demands: Sequence[ResourceRequest]
) -> tuple[dict[str, int], int]:
    """Nodes by type that the autoscaler would start from none, and how many demands fit no type."""
    reply = ResourceDemandScheduler(_Silent()).schedule(
        SchedulingRequest(
            node_type_configs=config.get_node_type_configs(),
            max_num_nodes=config.get_max_num_nodes(),
            disable_launch_config_check=True,
            resource_requests=ResourceRequestUtil.group_by_count(list(demands)),
        )
    )
    started: Counter[str] = Counter()
    for request in reply.to_launch:
        started[request.instance_type] += request.count
    started.pop(config.get_head_node_type(), None)
    return dict(started), len(reply.infeasible_resource_requests)
