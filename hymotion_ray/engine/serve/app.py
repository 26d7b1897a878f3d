"""The Ray Serve application: `build(args)` puts HTTP, encoders and samplers together.

`args` is a `config.serve.ServeConfig` as a mapping, as a Serve config file gives it. The HTTP side
itself is `http_app.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from hymotion_ray.config.fields import from_mapping, to_mapping
from hymotion_ray.config.serve import ServeConfig
from hymotion_ray.engine.serve.clients import RayEncoder, RayPool
from hymotion_ray.engine.serve.deployments import (
    actor_options,
    encoder_deployment,
    sampler_deployment,
)
from hymotion_ray.engine.serve.http_app import make_app
from hymotion_ray.engine.serve.log import set_up_logging, set_up_tracing
from hymotion_ray.engine.serve.office import Office
from hymotion_ray.engine.serve.router import PoolView, Router
from hymotion_ray.engine.serve.runner import ServedPools

logger = logging.getLogger("hymotion_ray.serve")
API_NAME = "Api"


class ApiReplica:
    """One HTTP process."""

    def __init__(
        self,
        config: Mapping[str, Any],
        handles: list[tuple[str, DeploymentHandle, dict[str, DeploymentHandle]]],
    ) -> None:
        """`handles`: for each model its name (or ""), its encoder and its pools."""
        parsed = from_mapping(ServeConfig, config, "serve config")
        if parsed.log_json:
            set_up_logging()
        set_up_tracing(parsed.otlp_endpoint)
        context = serve.get_replica_context()
        self._app_name = context.app_name
        models = []
        for served, (label, encoder, pools) in zip(parsed.models, handles, strict=True):
            views = [
                PoolView(pool.name, pool.scale is not None and pool.scale.min_replicas == 0)
                for pool in served.pools
            ]
            router = Router(views, parsed.queue.max_wait_s)
            clients = {name: RayPool(handle) for name, handle in pools.items()}
            models.append(ServedPools(label, RayEncoder(encoder), clients, router))
        self.office = Office(
            parsed,
            models,
            reach=self._reach if parsed.http.replicas > 1 else None,
            why_not=self._why_not,
        )
        _CURRENT.append(self.office)

    async def change_here(self, key: str, job_id: str, verb: str) -> bool:
        """Cancel, pause or resume a job of this process."""
        return await self.office.change_here(key, job_id, verb)

    async def drain(self) -> None:
        """Refuse new requests and finish what is waited for."""
        await self.office.desk.drain(self.office.config.http.drain_s)

    async def _reach(self, key: str, job_id: str, verb: str) -> bool:
        handle = serve.get_deployment_handle(API_NAME, self._app_name)
        answer = handle.broadcast("change_here", key, job_id, verb)
        found = await answer.results_async(timeout_s=10.0, return_exceptions=True)
        return any(one is True for one in found)

    async def _why_not(self) -> list[str]:
        """What Serve says of deployments that do not come up."""
        try:
            status = await asyncio.wait_for(asyncio.to_thread(serve.status), timeout=3.0)
        except Exception as error:  # noqa: BLE001 - only an explanation
            logger.debug("no status: %s", error)
            return []
        application = status.applications.get(self._app_name)
        if application is None:
            return []
        return [
            f"{name}: {_last_words(deployment.message)}"
            for name, deployment in application.deployments.items()
            if deployment.message and deployment.status.value not in ("HEALTHY",)
        ]

    def check_health(self) -> None:
        """To answer at all is all that is asked."""


_CURRENT: list[Office] = []


def _asgi() -> FastAPI:
    """The app of the office that the constructor of this process made."""
    return make_app(_CURRENT[-1])


def _last_words(message: str) -> str:
    """The line of a traceback that says what is wrong, without Ray's advice around it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors_ = [line for line in lines if "Error" in line.split(":")[0]]
    return (errors_ or lines)[-1][:400]


def build(args: Mapping[str, Any]) -> Application:
    """The application of a serve config; `ConfigError` for one that cannot be."""
    config = from_mapping(ServeConfig, dict(args), "serve config")
    return bind(config)


def bind(config: ServeConfig) -> Application:
    """The application of a checked config."""
    handles = []
    for number, served in enumerate(config.models):
        suffix = f"-{served.name or number}" if len(config.models) > 1 else ""
        encoder = encoder_deployment(served, f"Encoder{suffix}")
        pools = {
            pool.name: sampler_deployment(config, served, pool, f"Sampler{suffix}-{pool.name}")
            for pool in served.pools
        }
        handles.append((served.name or "", encoder, pools))
    http = config.http
    options: dict[str, Any] = {
        "name": API_NAME,
        "num_replicas": http.replicas,
        "max_ongoing_requests": 10_000,
        "ray_actor_options": actor_options(http.cpus, 0.0, http.labels, http.fallback),
        "graceful_shutdown_timeout_s": http.drain_s + 10.0,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": 5.0,
        "health_check_timeout_s": 30.0,
    }
    api = serve.deployment(**options)(serve.ingress(_asgi)(ApiReplica))
    application: Application = api.bind(to_mapping(config), handles)
    return application
