"""How many sampler replicas a pool needs: by seconds of work that wait and run, not by requests.

A request is anything from one short clip to sixty-four long ones, so their number says little.
"""

from __future__ import annotations

import math
from typing import Any

from ray.serve.config import AutoscalingContext


def replicas_for_queue(
    ctx: AutoscalingContext, target_queue_s: float = 5.0
) -> tuple[int, dict[str, Any]]:
    """Replicas wanted, so that each has at most `target_queue_s` of work. From zero: by requests.

    Delays and limits are the deployment's own; Serve applies them to what this returns.
    """
    told = dict(ctx.aggregated_metrics or {}).get("backlog_s", {})
    backlog_s = float(sum(told.values()))
    waiting = float(ctx.total_queued_requests or 0.0)
    if not ctx.current_num_replicas:
        return (1 if waiting > 0 or ctx.total_num_requests > 0 else 0), {}
    wanted = math.ceil(backlog_s / target_queue_s)
    if ctx.total_num_requests > 0:
        wanted = max(1, wanted)
    least, most = ctx.capacity_adjusted_min_replicas, ctx.capacity_adjusted_max_replicas
    return max(least, min(most, wanted)), {}
