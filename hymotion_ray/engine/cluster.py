"""Connecting to Ray, or starting it on this machine; shuts down only what it started."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from hymotion_ray.engine.address import require_answer, require_token, token_hint
from hymotion_ray.errors import ClusterError

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # Ray starts workers at niceness 15, where any other program takes the CPU from them.
    "RAY_worker_niceness": "0",
}
for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

import ray  # noqa: E402 - reads the environment above when imported

_LOCAL_STORE_BYTES = 1 << 30
_EXTRA_LOCAL_CPUS = 3
"""Logical CPUs beyond the real ones, so that light stages find a place beside the samplers."""


@dataclass(frozen=True)
class ClusterInfo:
    """What the connected cluster has."""

    num_cpus: float
    """Real CPUs, as far as is known."""
    total_cpus: float
    """CPUs that Ray schedules by; more than the real ones in a cluster started here."""
    num_gpus: float
    num_nodes: int
    started_here: bool


@contextlib.contextmanager
def connect(address: str | None = None) -> Iterator[ClusterInfo]:
    """Join the cluster at `address`, at RAY_ADDRESS or of the open session, else start one here.

    A cluster that was already open stays open; one that this call started ends with it.
    Raises `ClusterError` when nobody answers at `address`, or no token protects what does. Of a
    cluster that it starts here Ray makes the token itself.
    """
    if ray.is_initialized():
        yield _info(started_here=False)
        return
    address = address or os.environ.get("RAY_ADDRESS") or None
    local = address in (None, "local")
    if address is not None and not local:
        require_token(address)
        require_answer(address)
    try:
        with _sigterm_kept():
            if local:
                _start_here()
            else:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises plain Exception when it cannot start
        if local:
            raise ClusterError(
                f"Ray could not start on this machine ({type(error).__name__}: {error}); see its"
                " logs below /tmp/ray, and try again when the machine is less busy"
            ) from error
        raise ClusterError(
            f"no Ray cluster at {address!r} ({type(error).__name__}: {error}); start one with"
            " `ray start --head` and pass --address, or leave --address out to run on this machine"
            + token_hint()
        ) from error
    try:
        yield _info(started_here=local)
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Put a handler of SIGTERM back when Ray is up: it takes the signal for itself, and aborts the
    process three seconds later.
    """
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _start_here() -> None:
    """Start Ray on this machine; on a busy one it may miss its own time limit, then once more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    for tries_left in (2, 1, 0):
        try:
            ray.init(
                address="local",
                num_cpus=(cores or os.cpu_count() or 1) + _EXTRA_LOCAL_CPUS,
                include_dashboard=False,
                object_store_memory=_LOCAL_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            return
        except Exception as error:
            ray.shutdown()
            if "timed out" not in str(error) or not tries_left:
                raise


def quiet_data() -> None:
    """Keep Ray Data's own progress and plan lines out of the user's terminal."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _info(started_here: bool) -> ClusterInfo:
    resources = ray.cluster_resources()
    nodes = [n for n in ray.nodes() if n["Alive"]]
    if not nodes or resources.get("CPU", 0) <= 0:
        raise ClusterError(
            "the Ray cluster has no node with CPUs; add a worker node"
            " (`ray start --address=...`) and run the same command again"
        )
    total_cpus = resources["CPU"]
    return ClusterInfo(
        num_cpus=total_cpus - (_EXTRA_LOCAL_CPUS if started_here else 0),
        total_cpus=total_cpus,
        num_gpus=resources.get("GPU", 0),
        num_nodes=len(nodes),
        started_here=started_here,
    )
