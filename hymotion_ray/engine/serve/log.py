"""Serving's log: one JSON object a line, with the id of the request in hand, and no secrets.

The request's id travels in a context variable, so that every line written while a request is
answered bears it. Where Ray Serve is told to log JSON its own files carry the same id, as both take
it from `X-Request-ID`. Traces: spans of OpenTelemetry where its packages are set up; without them
`span` does nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import json
import logging
import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

logger = logging.getLogger("hymotion_ray.serve")
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
caller_name: contextvars.ContextVar[str] = contextvars.ContextVar("caller_name", default="")
HEADER = "X-Request-ID"
TRACE_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_SECRET = re.compile(r"(hmr_|whsec_)[A-Za-z0-9_+/=-]+|(?i:\bbearer\s+)[^\s\"',;]+")
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def take_request_id(given: str | None) -> str:
    """The client's request id where it is a plain one, else a new one."""
    return given if given and _ID.fullmatch(given) else uuid.uuid4().hex


def redact(text: str) -> str:
    """The text without keys, webhook secrets and bearer tokens."""
    return _SECRET.sub(lambda match: f"{match[1] or 'Bearer '}***", text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, ids, `extra=` fields, any error."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            line["request_id"] = request_id.get()
        if caller_name.get():
            line["key"] = caller_name.get()
        line |= {name: value for name, value in record.__dict__.items() if name not in _OWN}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return redact(json.dumps(line, ensure_ascii=False, default=str))


def set_up_logging(level: int = logging.INFO) -> None:
    """Send serving's lines to stderr as JSON, once a process. Other loggers stay as they are."""
    if not any(isinstance(handler.formatter, JsonFormatter) for handler in logger.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def set_up_tracing(endpoint: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Export spans over OTLP to a collector such as http://host:4318; whether it is so.

    None: where OpenTelemetry's own variables name one, else not at all.

    Needs opentelemetry-exporter-otlp-proto-http; without it a line says so and serving goes on.
    """
    if endpoint is None and not any(environment.get(name) for name in TRACE_VARIABLES):
        return False
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.warning("no traces: pip install opentelemetry-exporter-otlp (%s)", error.name)
        return False
    provider = TracerProvider(resource=Resource.create({"service.name": "hymotion-ray"}))
    url = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None
    exporter = OTLPSpanExporter(endpoint=url)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return True


@contextlib.contextmanager
def span(
    name: str, attributes: Mapping[str, str | int | float], parent: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A span around a block; `parent`: headers that may hold a W3C `traceparent`."""
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        yield
        return
    context = propagate.extract(dict(parent)) if parent else None
    tracer = trace.get_tracer("hymotion_ray.serve")
    with tracer.start_as_current_span(name, context=context, attributes=dict(attributes)) as own:
        if request_id.get():
            own.set_attribute("request_id", request_id.get())
        yield
