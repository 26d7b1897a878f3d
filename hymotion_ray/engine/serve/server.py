"""An endpoint on this machine or a cluster: start, say that it is ready, run until told to end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
from ray import serve
from ray.serve.config import HTTPOptions

from hymotion_ray.config.serve import PoolConfig, ScaleConfig, ServeConfig, ServedModel
from hymotion_ray.engine.address import require_keys
from hymotion_ray.engine.cards import cards
from hymotion_ray.engine.cluster import ClusterInfo, connect
from hymotion_ray.engine.doctor.at_start import warn_of_nodes
from hymotion_ray.engine.nodes import living_nodes
from hymotion_ray.engine.plan_check import require_cluster
from hymotion_ray.engine.serve.app import API_NAME, bind
from hymotion_ray.engine.serve.carried import (
    carried_out,
    expected_serving,
    served_so_far,
    words_expected,
    words_served,
)
from hymotion_ray.errors import ClusterError
from hymotion_ray.formats.models.checkpoint import read_model
from hymotion_ray.formats.models.locate import model_folder
from hymotion_ray.planning.carried import PlanFile

logger = logging.getLogger("hymotion_ray.serve")
APP_NAME = "hymotion"
_ENCODER_SHARE = 0.25
_START_S = 900.0


@dataclass
class Server:
    """A running endpoint."""

    url: str
    config: ServeConfig

    def ready(self) -> tuple[bool, str]:
        """Whether it takes requests, and if not, why."""
        try:
            answer = httpx.get(f"{self.url}/readyz", timeout=5.0)
        except httpx.HTTPError as error:
            return False, f"no answer yet ({type(error).__name__})"
        try:
            return answer.status_code == 200, str(answer.json().get("reason", ""))
        except ValueError:
            return False, answer.text[:200]


def fit_to(config: ServeConfig, cluster: ClusterInfo, *, check_models: bool = True) -> ServeConfig:
    """The config with what it leaves open settled for this cluster: GPU shares, CPUs, replicas.

    `CheckpointError` for a model that cannot be read from here, unless `check_models` is off.
    """
    models = []
    for served in config.models:
        large = False
        if check_models:
            held = read_model(model_folder(served.model))
            large = held.config.text.kind != "static"
        models.append(_fit_model(served, cluster, large))
    cpus = config.http.cpus
    http = dataclasses.replace(config.http, cpus=_LIGHT_CPUS if cpus is None else cpus)
    return dataclasses.replace(config, models=tuple(models), http=http)


_LIGHT_CPUS = 0.5


def _fit_model(served: ServedModel, cluster: ClusterInfo, large: bool) -> ServedModel:
    has_gpus = cluster.num_gpus > 0
    encoder = served.encoder
    if encoder.gpus is None:
        share = _ENCODER_SHARE if has_gpus and large else 0.0
        encoder = dataclasses.replace(encoder, gpus=share)
    if encoder.cpus is None:
        encoder = dataclasses.replace(encoder, cpus=_LIGHT_CPUS)
    return dataclasses.replace(
        served,
        encoder=encoder,
        pools=tuple(_fit_pool(p, cluster, encoder.gpus or 0.0) for p in served.pools),
    )


def _fit_pool(pool: PoolConfig, cluster: ClusterInfo, encoder_gpus: float) -> PoolConfig:
    gpus, scale = pool.gpus, pool.scale
    if gpus is None:
        gpus = (1.0 - encoder_gpus if encoder_gpus else 1.0) if cluster.num_gpus else 0.0
    if scale is None and cluster.started_here:
        # This machine's own: a replica a GPU, or a CPU where there is none.
        number = max(1, int(cluster.num_gpus) if gpus else int(cluster.num_cpus))
        scale = ScaleConfig(min_replicas=number, max_replicas=number)
    cpus = 1.0 if pool.cpus is None else pool.cpus
    return dataclasses.replace(pool, gpus=gpus, scale=scale, cpus=cpus)


@contextlib.contextmanager
def running(config: ServeConfig, address: str | None = None) -> Iterator[Server]:
    """An endpoint that ends with the block.

    `ClusterError` when the port is taken, `ConfigError` when it is open to others without keys.
    """
    require_keys(config.http)
    with connect(address) as cluster, _running_on(cluster, config) as server:
        yield server


@contextlib.contextmanager
def _running_on(cluster: ClusterInfo, config: ServeConfig) -> Iterator[Server]:
    settled = fit_to(config, cluster)
    if cluster.started_here:  # elsewhere the port is the other nodes', or a Serve's that runs
        _check_port(settled)
    serve.start(
        proxy_location="HeadOnly" if cluster.num_nodes == 1 else "EveryNode",
        http_options=HTTPOptions(host=settled.http.host, port=settled.http.port),
    )
    try:
        deploy(settled)
        host = "127.0.0.1" if settled.http.host in ("0.0.0.0", "::") else settled.http.host
        yield Server(f"http://{host}:{settled.http.port}", settled)
    finally:
        _drain(settled)
        serve.shutdown()


def _drain(config: ServeConfig) -> None:
    """Let the HTTP processes refuse what comes and finish what is there, before all is deleted."""
    try:
        handle = serve.get_deployment_handle(API_NAME, APP_NAME)
        handle.broadcast("drain").results(timeout_s=config.http.drain_s + 10.0)
    except Exception as error:  # noqa: BLE001 - whatever it is, the end comes all the same
        logger.warning("the HTTP processes could not be drained: %s", error)


def deploy(config: ServeConfig) -> None:
    """Put the application of a settled config on the Serve that runs; returns at once."""
    serve.run_many(
        [serve.RunTarget(bind(config), name=APP_NAME, route_prefix="/")],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def _check_port(config: ServeConfig) -> None:
    import socket

    host, port = config.http.host, config.http.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ClusterError(
                f"port {port} of {host} cannot be used ({error.strerror}); free it or pass another"
                " --port"
            ) from error


def run_server(
    config: ServeConfig,
    say: Callable[[str], None],
    address: str | None = None,
    plan: PlanFile | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish what is waited for and end.

    `plan` settles what the config leaves open; without, the endpoint only says what it expects.
    Raises `InputError` for a model that cannot be read, `ClusterError` when the endpoint does not
    become ready.
    """
    if plan is not None:
        config = carried_out(config, plan)
    with connect(address) as cluster, _told_to_end() as stop:
        warn_of_nodes(cluster, say)
        found = cards(living_nodes()) if cluster.num_gpus else []
        if plan is not None:
            require_cluster(plan, cluster, found)
        with _running_on(cluster, config) as server:
            began = time.monotonic()
            say(f"starting {', '.join(m.name or m.model for m in server.config.models)}")
            expected = expected_serving(server.config, found, plan)
            if expected is not None:
                say(words_expected(expected))
            if _wait_ready(server, say, stop):
                say(f"ready: {server.url}/ (page), {server.url}/docs (API)")
                stop.wait()
            if expected is not None:
                clips, device_s = served_so_far(server.url)
                say(words_served(expected, clips, device_s, time.monotonic() - began))
            say("ending: what is waited for is finished first")


@contextlib.contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Set at SIGINT and SIGTERM. For after Ray has started: it takes both signals for itself, and
    after a SIGTERM that it sees the process is aborted three seconds later.
    """
    stop = threading.Event()
    previous = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait_ready(server: Server, say: Callable[[str], None], stop: threading.Event) -> bool:
    """Whether it became ready before it was told to end."""
    began, told = time.monotonic(), ""
    while not stop.is_set():
        is_ready, why = server.ready()
        if is_ready:
            return True
        if why != told:
            told = why
            say(f"not ready yet: {why}")
        if time.monotonic() - began > _START_S:
            raise ClusterError(f"the endpoint is not ready after {_START_S:g} s: {why}")
        stop.wait(0.5)
    return False
