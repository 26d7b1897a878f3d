"""An S3 service for one test: moto's, on a port of this machine, named in the environment.

moto keeps its buckets per process, not per server, so each service starts by emptying them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import boto3
import pytest
from moto.moto_api._internal.models import moto_api_backend
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

moto_app = DomainDispatcherApplication(create_backend_app)


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, bucket: str, app: Callable = moto_app) -> Iterator:
    """Serve `app`, moto or a gate before it, with one empty bucket; give a boto3 client of it."""
    moto_api_backend.reset()
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=bucket)
    yield client
    server.shutdown()
    thread.join()
