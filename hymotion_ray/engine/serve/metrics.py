"""What serving counts: one table of Prometheus series, and the one place that records them.

Every number goes two ways: to `ray.util.metrics`, which the node's metrics port exports for the
whole cluster, and to this process's own registry, which `/metrics` of the HTTP port shows. The
names are the same on both, so that one set of rules serves either; scrape one of the two. Knows no
queue and no request: others report to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import prometheus_client as prometheus

PREFIX = "hymotion_serve_"
ANONYMOUS = "anonymous"
"""The tag `key` of requests without one."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_STEP_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class Series:
    """One series: its kind, name without prefix, meaning, tags and (histograms) buckets."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    about: str
    tags: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """The name that Prometheus sees; histograms add `_bucket`, `_sum` and `_count`."""
        return f"ray_{PREFIX}{self.name}" + ("_total" if self.kind == "counter" else "")


SERIES: tuple[Series, ...] = (
    Series("counter", "requests", "HTTP requests answered", ("route", "status", "key")),
    Series("histogram", "request_seconds", "time to answer a request", ("route",), _SECONDS),
    Series("counter", "jobs", "jobs that ended, by state", ("state", "pool", "key")),
    Series("counter", "clips", "clips finished", ("pool", "key")),
    Series("counter", "clip_seconds", "seconds of motion finished", ("pool", "key")),
    Series("counter", "gpu_seconds", "device seconds spent", ("pool", "key")),
    Series("gauge", "queued_clips", "clips that wait", ("pool", "key")),
    Series("gauge", "queued_clip_seconds", "seconds of motion that wait", ("pool", "key")),
    Series("gauge", "running_clips", "clips in a batch that runs", ("pool",)),
    Series("gauge", "predicted_wait_seconds", "time until new work would start", ("pool",)),
    Series("gauge", "pace", "seconds of motion made a second, measured", ("pool",)),
    Series("gauge", "replicas", "sampler replicas, by state", ("pool", "state")),
    Series("gauge", "ready", "1 when the endpoint takes work, else 0"),
    Series("histogram", "queue_seconds", "wait before a clip's batch began", ("pool",), _SECONDS),
    Series("histogram", "job_seconds", "time from accepted to ended", ("pool",), _SECONDS),
    Series("histogram", "batch_fill", "live rows / rows of a batch", ("pool",), _SHARES),
    Series("histogram", "padding_waste", "frames computed and not asked", ("pool",), _SHARES),
    Series("histogram", "step_seconds", "time of one solver step", ("pool",), _STEP_SECONDS),
    Series("counter", "batches_run", "batches that the samplers ran", ("pool",)),
    Series("counter", "cold_starts", "sampler replicas that started", ("pool",)),
    Series("histogram", "cold_start_seconds", "start to ready of a replica", ("pool",), _SECONDS),
    Series("counter", "shed", "requests refused with 429 or 503, by reason", ("reason", "key")),
    Series("counter", "cancelled_clips", "clips cancelled before they ended", ("pool", "key")),
    Series("counter", "retried_clips", "clips queued again after a replica died", ("pool",)),
    Series("counter", "out_of_memory", "batches that ran out of memory", ("pool",)),
    Series("counter", "webhooks", "webhook deliveries, by outcome", ("outcome",)),
)
"""All series. docs/serving-client.md shows this table."""
_BY_NAME = {series.name: series for series in SERIES}


class Metrics:
    """Records the series of one process. Safe from several threads."""

    def __init__(self, *, to_ray: bool = True) -> None:
        """to_ray: also report to Ray's exporter; off where no Ray runs."""
        self._registry = prometheus.CollectorRegistry()
        self._own = {series.name: self._make(series) for series in SERIES}
        self._ray = {series.name: _ray_metric(series) for series in SERIES} if to_ray else {}

    def count(self, name: str, tags: Mapping[str, str] | None = None, amount: float = 1.0) -> None:
        """Add to a counter; nothing for an amount of 0."""
        if amount <= 0:
            return
        self._find(name, "counter", tags).inc(amount)
        if name in self._ray:
            self._ray[name].inc(amount, dict(tags or {}))

    def gauge(self, name: str, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Set a gauge."""
        self._find(name, "gauge", tags).set(value)
        if name in self._ray:
            self._ray[name].set(value, dict(tags or {}))

    def observe(self, name: str, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Add one value to a histogram."""
        self._find(name, "histogram", tags).observe(value)
        if name in self._ray:
            self._ray[name].observe(value, dict(tags or {}))

    def text(self) -> str:
        """The series of this process in Prometheus' text form, of type `CONTENT_TYPE`."""
        return prometheus.generate_latest(self._registry).decode()

    def value(self, name: str, tags: Mapping[str, str] | None = None) -> float:
        """A counter's or gauge's value, of a histogram the number of values; 0 if never set."""
        series = _BY_NAME[name]
        suffix = {"counter": "_total", "gauge": "", "histogram": "_count"}[series.kind]
        found = self._registry.get_sample_value(f"ray_{PREFIX}{name}{suffix}", dict(tags or {}))
        return found or 0.0

    def _find(self, name: str, kind: str, tags: Mapping[str, str] | None) -> Any:
        series = _BY_NAME[name]
        assert series.kind == kind, f"{name} is a {series.kind}"
        assert set(tags or {}) == set(series.tags), f"{name} has the tags {series.tags}"
        metric = self._own[name]
        return metric.labels(**tags) if tags else metric

    def _make(self, series: Series) -> Any:
        name, about = f"ray_{PREFIX}{series.name}", series.about
        if series.kind == "counter":
            return prometheus.Counter(name, about, series.tags, registry=self._registry)
        if series.kind == "gauge":
            return prometheus.Gauge(name, about, series.tags, registry=self._registry)
        return prometheus.Histogram(
            name, about, series.tags, registry=self._registry, buckets=series.buckets
        )


def _ray_metric(series: Series) -> Any:
    from ray.util import metrics

    name = PREFIX + series.name
    if series.kind == "counter":
        return metrics.Counter(name, series.about, series.tags)
    if series.kind == "gauge":
        return metrics.Gauge(name, series.about, series.tags)
    return metrics.Histogram(name, series.about, list(series.buckets), series.tags)
