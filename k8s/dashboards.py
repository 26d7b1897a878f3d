"""The Grafana dashboards, written from the tables below: python k8s/dashboards.py

One row of a table is one panel: title, unit, and its queries with their legends. Series named
ray_hymotion_serve_* are this project's (hymotion_ray/engine/serve/metrics.py), all others Ray's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "base" / "monitoring" / "dashboards"
IN = '{namespace=~"$namespace"}'
SERVE = "ray_hymotion_serve_"

Query = tuple[str, str]
Panel = tuple[str, str, tuple[Query, ...]]


def rate(name: str, by: str = "", where: str = "") -> str:
    """Sum of a counter's rate, by labels."""
    inside = f'namespace=~"$namespace"{", " + where if where else ""}'
    return f"sum by ({by}) (rate({name}{{{inside}}}[$__rate_interval]))"


def quantile(share: float, name: str, by: str = "") -> str:
    """A quantile of a histogram, by labels."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(name + '_bucket', labels)})"


GPUS: tuple[Panel, ...] = (
    (
        "GPU utilisation",
        "percent",
        ((f"ray_node_gpus_utilization{IN}", "{{pod}} {{GpuDeviceName}}"),),
    ),
    (
        "GPU memory used",
        "decmbytes",
        ((f"ray_node_gram_used{IN}", "{{pod}} {{GpuDeviceName}}"),),
    ),
    (
        "GPU temperature",
        "celsius",
        ((f"ray_node_gpu_temperature_celsius{IN}", "{{pod}}"),),
    ),
)
NODES: tuple[Panel, ...] = (
    ("CPU utilisation", "percent", ((f"ray_node_cpu_utilization{IN}", "{{pod}}"),)),
    (
        "Memory used",
        "percentunit",
        ((f"ray_node_mem_used{IN} / ray_node_mem_total{IN}", "{{pod}}"),),
    ),
    (
        "Disk free",
        "percentunit",
        (
            (
                f"ray_node_disk_free{IN} / (ray_node_disk_free{IN} + ray_node_disk_usage{IN})",
                "{{pod}}",
            ),
        ),
    ),
    (
        "Network",
        "Bps",
        (
            (f"ray_node_network_receive_speed{IN}", "{{pod}} in"),
            (f"ray_node_network_send_speed{IN}", "{{pod}} out"),
        ),
    ),
)
RENDER: tuple[Panel, ...] = (
    (
        "Worker processes",
        "short",
        ((f'sum by (Name, State) (ray_actors{{Name="StageWorker", {IN[1:]})', "{{State}}"),),
    ),
    (
        "Processes that ended unexpectedly",
        "short",
        (
            (
                "sum by (pod) (increase"
                f"(ray_node_manager_unexpected_worker_failure_total{IN}[15m]))",
                "{{pod}}",
            ),
        ),
    ),
    (
        "Nodes asked for and there",
        "short",
        (
            (f"sum (autoscaler_active_nodes{IN})", "active"),
            (f"sum (autoscaler_pending_nodes{IN})", "pending"),
        ),
    ),
    (
        "Object store",
        "bytes",
        ((f"sum by (Location) (ray_object_store_memory{IN})", "{{Location}}"),),
    ),
)
TRAIN: tuple[Panel, ...] = (
    (
        "State of the run",
        "short",
        (
            (
                "sum by (ray_train_run_name, ray_train_controller_state)"
                f" (ray_train_controller_state{IN})",
                "{{ray_train_run_name}} {{ray_train_controller_state}}",
            ),
        ),
    ),
    (
        "Time to get the workers",
        "s",
        (
            (
                f"sum by (ray_train_run_name) (ray_train_worker_group_start_total_time_s{IN})",
                "{{ray_train_run_name}}",
            ),
        ),
    ),
    (
        "Time blocked in reports, a worker",
        "s",
        (
            (
                f"ray_train_report_total_blocked_time_s{IN}",
                "rank {{ray_train_worker_world_rank}}",
            ),
        ),
    ),
    (
        "Time of checkpoint uploads, a worker",
        "s",
        (
            (
                f"ray_train_checkpoint_transfer_total_time_s{IN}",
                "rank {{ray_train_worker_world_rank}}",
            ),
        ),
    ),
)
SERVING: tuple[Panel, ...] = (
    ("Ready", "short", ((f"max ({SERVE}ready{IN})", "ready"),)),
    (
        "Requests",
        "reqps",
        ((rate(f"{SERVE}requests_total", "status"), "{{status}}"),),
    ),
    (
        "Refused for want of room",
        "reqps",
        ((rate(f"{SERVE}shed_total", "reason"), "{{reason}}"),),
    ),
    (
        "From accepted to ended",
        "s",
        tuple((quantile(q, f"{SERVE}job_seconds"), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)),
    ),
    (
        "Wait before the batch",
        "s",
        tuple(
            (quantile(q, f"{SERVE}queue_seconds", "pool"), f"{{{{pool}}}} p{q * 100:g}")
            for q in (0.5, 0.95)
        ),
    ),
    (
        "Predicted wait",
        "s",
        ((f"min by (pool) ({SERVE}predicted_wait_seconds{IN})", "{{pool}}"),),
    ),
    (
        "Queue",
        "s",
        ((f"sum by (pool) ({SERVE}queued_clip_seconds{IN})", "{{pool}}: seconds of motion"),),
    ),
    (
        "Pace: seconds of motion a second",
        "short",
        ((rate(f"{SERVE}clip_seconds_total", "pool"), "{{pool}}"),),
    ),
    (
        "Replicas",
        "short",
        ((f"sum by (pool, state) ({SERVE}replicas{IN})", "{{pool}} {{state}}"),),
    ),
    (
        "Rows in use, of a batch",
        "percentunit",
        ((quantile(0.5, f"{SERVE}batch_fill", "pool"), "{{pool}} median"),),
    ),
    (
        "One solver step",
        "s",
        ((quantile(0.95, f"{SERVE}step_seconds", "pool"), "{{pool}} p95"),),
    ),
    (
        "Device seconds by key",
        "short",
        ((rate(f"{SERVE}gpu_seconds_total", "key"), "{{key}}"),),
    ),
    (
        "Trouble",
        "short",
        (
            (rate(f"{SERVE}out_of_memory_total", "pool"), "{{pool}} out of memory"),
            (rate(f"{SERVE}retried_clips_total", "pool"), "{{pool}} retried clips"),
            (rate(f"{SERVE}cold_starts_total", "pool"), "{{pool}} cold starts"),
            (rate(f"{SERVE}webhooks_total", "outcome"), "webhooks {{outcome}}"),
        ),
    ),
)
DASHBOARDS = {
    "render": ("HY-Motion: bulk rendering", (*GPUS, *RENDER, *NODES)),
    "serve": ("HY-Motion: endpoint", (*SERVING, *GPUS, *NODES)),
    "train": ("HY-Motion: training", (*TRAIN, *GPUS, *NODES)),
}


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard, as Grafana takes it."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"hymotion-{name}",
        "title": title,
        "tags": ["hymotion-ray"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "namespace",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "$datasource"},
                    "query": "label_values(ray_node_cpu_utilization, namespace)",
                    "includeAll": True,
                    "refresh": 2,
                },
            ]
        },
        "panels": [_panel(number, *panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, title: str, unit: str, queries: tuple[Query, ...]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "$datasource"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "gridPos": {"h": 8, "w": 8, "x": number % 3 * 8, "y": number // 3 * 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + k), "expr": expr, "legendFormat": legend, "datasource": source}
            for k, (expr, legend) in enumerate(queries)
        ],
    }


def text(name: str) -> str:
    """A dashboard's file."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for each in DASHBOARDS:
        (FOLDER / f"hymotion-{each}.json").write_text(text(each), encoding="utf-8")
