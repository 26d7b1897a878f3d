"""An endpoint in this process: real model, batcher, desk and HTTP app, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from hymotion_ray.config.serve import JobsConfig, PoolConfig, QueueConfig, ServeConfig, ServedModel


@pytest.fixture(scope="module")
def served_model(random_model) -> Iterator[Callable[[ServeConfig], Any]]:
    """`served_model(config)`: its pools, whose cores end with the module."""
    from local_pools import make_pools

    cores = []

    def make(config: ServeConfig) -> Any:
        served, clients = make_pools(str(random_model), config)
        cores.extend(client.core for client in clients.values())
        return served, clients

    yield make
    for core in cores:
        core.stop()


@pytest.fixture
def endpoint(served_model, tmp_path) -> Callable[..., Any]:
    """`async with endpoint(**config fields) as (client, office, pools)`."""

    @contextlib.asynccontextmanager
    async def start(**fields: Any) -> AsyncIterator[Any]:
        from hymotion_ray.engine.serve.http_app import make_app
        from hymotion_ray.engine.serve.office import Office

        values: dict[str, Any] = {
            "models": (ServedModel(model="unused", pools=(PoolConfig(rows=2),)),),
            "queue": QueueConfig(),
            "jobs": JobsConfig(folder=str(tmp_path / "jobs")),
        }
        config = ServeConfig(**values | fields)
        served, pools = served_model(config)
        office = Office(config, [served], to_ray=False)
        app = make_app(office)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://serve", timeout=60) as client,
        ):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.02)  # the call itself never lets others run
            yield client, office, pools

    return start


@pytest.fixture
def slow_pool() -> PoolConfig:
    """A pool of one-row cells whose steps take a tenth of a second."""
    return dataclasses.replace(PoolConfig(), rows=1, least_step_s=0.1)
