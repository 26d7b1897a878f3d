"""A run on Ray Train: workers with a process group, started again from the last checkpoint.

Knows Ray Train. What a worker does is `RankRun`. Checkpoints are the run folder's own and not
reported to Ray: `report` would be a barrier of every rank with the controller's poll, and would
copy what already lies where every node sees it. A worker finds the newest one when it starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from hymotion_ray.config.training import TrainConfig
from hymotion_ray.engine import faults
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.device import set_threads
from hymotion_ray.engine.lease import WORK_FOLDER
from hymotion_ray.engine.train.clip_reader import unpacked_bytes
from hymotion_ray.engine.train.fatal import read_fatal, write_fatal
from hymotion_ray.engine.train.feed import process_steps
from hymotion_ray.engine.train.loader import LoaderSpec
from hymotion_ray.engine.train.rank_run import RankJob, RankRun, StartFeed
from hymotion_ray.errors import ClusterError, HyMotionError
from hymotion_ray.formats.shards import open_dataset

_STORAGE = f"{WORK_FOLDER}/ray"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """What Ray Train hands to each worker."""

    rank_job: RankJob
    num_gpus: float
    faults_folder: str | None


def fit(job: RankJob, cluster: ClusterInfo, say: Callable[[str], None]) -> None:
    """Train to the end on the connected cluster.

    Raises the error of `hymotion_ray.errors` that a worker ended with, and `ClusterError` when
    workers die more often than allowed.
    """
    config = job.config
    num_gpus = gpus_per_worker(config, cluster)
    # A busy node needs minutes until torch is imported and the weights are read. An elastic run
    # does not wait for a node that is gone, and starts with those that are there.
    os.environ.setdefault(
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "60" if config.workers.is_elastic else "300"
    )
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "1")
    _require_room(config, cluster, num_gpus)
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    out = Path(config.out)
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={
            "job": WorkerJob(rank_job=job, num_gpus=num_gpus, faults_folder=faults.folder())
        },
        scaling_config=_scaling(config, num_gpus),
        torch_config=TorchConfig(
            backend="nccl" if num_gpus else "gloo",
            timeout_s=max(1, int(config.failures.collective_timeout_s)),
        ),
        run_config=RunConfig(
            name=f"attempt-{uuid.uuid4().hex[:12]}",
            storage_path=str((out / _STORAGE).resolve()),
            failure_config=ray.train.FailureConfig(max_failures=config.failures.max_restarts),
        ),
    )
    (out / _STORAGE).mkdir(parents=True, exist_ok=True)
    try:
        with _interruptible():
            trainer.fit()
    except ray.train.TrainingFailedError as error:
        raise _failure(error, config) from error
    fatal = read_fatal(out)
    if fatal is not None:
        raise fatal


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C as everywhere: Ray Train aborts the run at it, ends the process with 0 and keeps the
    signal for good.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as error:
        raise KeyboardInterrupt from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def train_worker(settings: dict[str, Any]) -> None:
    """The loop of one worker, as Ray Train calls it."""
    job: WorkerJob = settings["job"]
    faults.use(job.faults_folder)
    config = job.rank_job.config
    if read_fatal(Path(config.out)) is not None:
        return  # this start follows an error that no start mends
    context = ray.train.get_context()
    device = torch.device("cpu")
    if job.num_gpus:
        device = ray.train.torch.get_device()
    else:
        set_threads(config.workers.cpu_threads)
    os.environ["HYMOTION_NODE_ID"] = ray.get_runtime_context().get_node_id()
    run = RankRun(job.rank_job, device)
    assert run.rank == context.get_world_rank()
    try:
        run.run(_start_feed(config))
    except HyMotionError as error:
        # Another start of the workers may mend a lost rank, but not bad input, settings or numbers.
        own = error.__cause__ if isinstance(error, ClusterError) else error
        if isinstance(own, HyMotionError) and not isinstance(own, ClusterError):
            write_fatal(Path(config.out), own)
        raise


def gpus_per_worker(config: TrainConfig, cluster: ClusterInfo) -> float:
    """1 where workers train on GPUs, 0 on CPUs."""
    wanted = config.workers.use_gpu
    return 1.0 if wanted == "yes" or (wanted == "auto" and cluster.num_gpus > 0) else 0.0


def _start_feed(config: TrainConfig) -> StartFeed | None:
    """Ray Data or processes as the reader, or None for a thread of the worker."""
    reader = config.input.reader
    if reader == "auto":
        size = unpacked_bytes(open_dataset(config.data), config.input.split)
        reader = "local" if size <= config.input.cache_mb << 20 else "ray"
    if reader == "local":
        return None

    def start(spec: LoaderSpec, position: int, num_steps: int) -> Any:
        if reader == "processes":
            return process_steps(spec, position, num_steps, config.input.readers)
        from hymotion_ray.engine.train.ray_feed import ray_steps

        return ray_steps(spec, position, num_steps, config.input.readers)

    return start


def _scaling(config: TrainConfig, num_gpus: float) -> ScalingConfig:
    workers = config.workers
    resources = {"CPU": workers.cpus_per_worker}
    if num_gpus:
        resources["GPU"] = num_gpus
    # Elastic ranges and label selectors are Ray Train's second version's, unknown to its types.
    options: dict[str, Any] = {"num_workers": workers.min_workers}
    if workers.is_elastic:
        options["num_workers"] = (workers.min_workers, workers.max_workers)
    if workers.labels:
        options["label_selector"] = [dict([label.split("=", 1)]) for label in workers.labels]
    return ScalingConfig(use_gpu=bool(num_gpus), resources_per_worker=resources, **options)


def _require_room(config: TrainConfig, cluster: ClusterInfo, num_gpus: float) -> None:
    """Raise `ClusterError` when the cluster has no room for the fewest workers."""
    least = config.workers.min_workers
    for name, each, there in (
        ("GPUs", num_gpus, cluster.num_gpus),
        ("CPUs", config.workers.cpus_per_worker, cluster.total_cpus),
    ):
        if least * each > there:
            raise ClusterError(
                f"{least} workers need {least * each:g} {name} and the cluster has {there:g};"
                " give fewer --workers, or add nodes"
            )


def _failure(error: Exception, config: TrainConfig) -> HyMotionError:
    fatal = read_fatal(Path(config.out))
    if fatal is not None:
        return fatal
    failures = getattr(error, "worker_failures", {})
    said = [f"rank {rank}: {_short(why)}" for rank, why in sorted(failures.items())]
    return ClusterError(
        f"training workers failed more than {config.failures.max_restarts} times; the last time:"
        f" {'; '.join(said[:4]) or _short(error)}. The checkpoints are whole: mend the cause and"
        " run the same command again"
    )


def _short(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:400]
