"""The real HTTP app in a thread of this process: no Ray, samplers of `local_pools`, any port."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from local_pools import LocalPool, make_pools

from hymotion_ray.config.serve import ServeConfig
from hymotion_ray.engine.serve.http_app import make_app
from hymotion_ray.engine.serve.office import Office
from hymotion_ray.engine.serve.runner import ServedPools


@dataclass
class Live:
    """A running endpoint and the pieces a test may reach into."""

    url: str
    office: Office
    pools: dict[str, LocalPool]


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """The test run keeps its own."""


@contextlib.contextmanager
def serving(config: ServeConfig, made: tuple[ServedPools, dict[str, LocalPool]]) -> Iterator[Live]:
    """The app of a config over pools from `make_pools`; ready when the block begins."""
    served, pools = made
    office = Office(config, [served], to_ray=False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        settings = uvicorn.Config(
            make_app(office), log_level="error", lifespan="on", timeout_graceful_shutdown=5
        )  # fmt: skip
        server = _Server(settings)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        until = time.monotonic() + 60
        while not (server.started and office.by_name and not office._unready_models()):
            assert time.monotonic() < until, "the app does not start"
            time.sleep(0.02)
        try:
            yield Live(f"http://127.0.0.1:{listener.getsockname()[1]}", office, pools)
        finally:
            server.should_exit = True
            thread.join(timeout=20)


def tiny_pools(config: ServeConfig) -> tuple[ServedPools, dict[str, LocalPool]]:
    """The built-in model in this process."""
    return make_pools("tiny", config)


def some_jobs_folder(tmp: Path) -> str:
    """A folder for jobs."""
    return str(tmp / "jobs")
