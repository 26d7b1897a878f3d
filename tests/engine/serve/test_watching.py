"""What serving tells those who watch it: documented series, lines of JSON, no secret."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from hymotion_ray.engine.serve import log
from hymotion_ray.engine.serve.keys import new_key
from hymotion_ray.engine.serve.metrics import SERIES, Metrics

REPO = Path(__file__).resolve().parents[3]


def test_every_series_is_documented_under_the_name_it_is_exported_by():
    table = dict(
        re.findall(
            r"^\| `(ray_hymotion_serve_\w+)` \| (\w+) \|",
            (REPO / "docs" / "serving-client.md").read_text(),
            re.MULTILINE,
        )
    )
    assert table == {series.exported: series.kind for series in SERIES}


def test_counters_gauges_and_histograms_add_up_and_are_shown():
    metrics = Metrics(to_ray=False)
    tags = {"pool": "a10", "key": "studio"}
    metrics.count("clips", tags)
    metrics.count("clips", tags, 2)
    metrics.count("clips", tags, 0)
    metrics.gauge("ready", 1)
    metrics.observe("batch_fill", 0.75, {"pool": "a10"})
    assert metrics.value("clips", tags) == 3
    assert metrics.value("batch_fill", {"pool": "a10"}) == 1
    text = metrics.text()
    assert 'ray_hymotion_serve_clips_total{key="studio",pool="a10"} 3.0' in text
    assert "ray_hymotion_serve_ready 1.0" in text
    assert 'ray_hymotion_serve_batch_fill_bucket{le="0.8",pool="a10"} 1.0' in text
    with pytest.raises(AssertionError):
        metrics.count("clips", {"pool": "a10"})
    with pytest.raises(AssertionError):
        metrics.gauge("clips", 1, tags)


def test_ray_takes_every_series_with_its_tags():
    """Recorded without a cluster: Ray drops the numbers, but checks names, tags and buckets."""
    metrics = Metrics(to_ray=True)
    for series in SERIES:
        tags = dict.fromkeys(series.tags, "x")
        record = {"counter": metrics.count, "gauge": lambda n, t: metrics.gauge(n, 1.0, t)}
        record["histogram"] = lambda n, t: metrics.observe(n, 1.0, t)
        record[series.kind](series.name, tags)
        assert metrics.value(series.name, tags) == 1


@pytest.fixture
def lines():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.JsonFormatter())
    log.logger.addHandler(handler)
    level = log.logger.level
    log.logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    log.logger.removeHandler(handler)
    log.logger.setLevel(level)


def test_a_line_is_one_json_object_with_the_request_in_hand(lines):
    token = log.request_id.set("req-1")
    try:
        log.logger.info("two\nlines %d", 5, extra={"pool": "a10", "odd": {1, 2}})
        try:
            raise ValueError("broken")
        except ValueError:
            log.logger.exception("failed")
    finally:
        log.request_id.reset(token)
    log.logger.info("after")
    first, second, third = lines()
    assert first["message"] == "two\nlines 5"
    assert (first["request_id"], first["pool"], first["level"]) == ("req-1", "a10", "info")
    assert first["time"].endswith("Z")
    assert "ValueError: broken" in second["error"]
    assert "request_id" not in third


def test_no_line_holds_a_key_a_secret_or_a_token(lines):
    key, _ = new_key()
    secret = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="
    log.logger.info("got %s", key, extra={"headers": {"Authorization": f"Bearer {key}"}})
    log.logger.info("bearer abc.def-ghi and %s", secret)
    shown = json.dumps(lines())
    assert key not in shown
    assert key[4:] not in shown
    assert "abc.def" not in shown
    assert secret[6:20] not in shown


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-1", True), (None, False), ("", False), ("a b", False), ("x\r\ny", False),
        ("a" * 129, False), ('"}', False),
    ],
)  # fmt: skip
def test_a_request_id_of_the_client_is_kept_only_when_plain(given, kept):
    taken = log.take_request_id(given)
    assert (taken == given) is kept
    assert re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", taken)


def test_spans_are_opentelemetrys_and_join_the_clients_trace():
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    simple = pytest.importorskip("opentelemetry.sdk.trace.export")
    from opentelemetry import trace as api

    exporter = export.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(simple.SimpleSpanProcessor(exporter))
    api.set_tracer_provider(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with log.span("motion", {"num_frames": 150}, {"traceparent": parent}):
        pass
    (span,) = exporter.get_finished_spans()
    assert span.name == "motion"
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert span.attributes["num_frames"] == 150


def test_traces_are_off_unless_configured_and_never_needed(monkeypatch):
    assert log.set_up_tracing(None, {}) is False
    with monkeypatch.context() as patched:
        for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
            patched.delitem(sys.modules, name)
        patched.setitem(sys.modules, "opentelemetry", None)
        with log.span("motion", {}):
            pass
        assert log.set_up_tracing("http://127.0.0.1:4318", {}) is False
