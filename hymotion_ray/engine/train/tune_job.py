"""`train --tune`: the measurements of `tune.py` on the workers that a run would have.

Knows Ray Train. Takes clips of the longest bucket and texts of the usual length, made up: the time
of a step does not depend on what they say. Writes nothing into the run folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import Tensor

from hymotion_ray.config.model import ModelConfig
from hymotion_ray.config.training import TrainConfig
from hymotion_ray.engine.cluster import ClusterInfo, connect
from hymotion_ray.engine.device import set_threads
from hymotion_ray.engine.train.origin import find_origin
from hymotion_ray.engine.train.rank_failure import naming_the_rank
from hymotion_ray.engine.train.trainer import gpus_per_worker
from hymotion_ray.engine.train.tune import Tuning, tune
from hymotion_ray.errors import ClusterError
from hymotion_ray.formats.shards import open_dataset

NUM_TOKENS = 40
"""Text tokens a clip: those of a sentence, in a bucket of eights."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    config: TrainConfig
    rows: tuple[int, ...]
    num_gpus: float
    answer: Any
    """Handle of the actor that takes rank 0's table."""


class _Answer:
    """Holds the result until the driver asks."""

    def __init__(self) -> None:
        self.value: Tuning | None = None

    def put(self, value: Tuning) -> None:
        self.value = value

    def get(self) -> Tuning | None:
        return self.value


def run_tuning(
    config: TrainConfig, say: Callable[[str], None], rows: tuple[int, ...] = ()
) -> Tuning:
    """Measure on a cluster with the workers of `config`; `say` takes lines for the user.

    rows: clips of a pass to try; none given, half of micro_batch, all of it and twice that. Raises
    `ClusterError` when the workers fail.
    """
    size = config.micro_batch
    rows = rows or tuple(sorted({max(1, size // 2), size, 2 * size}))
    with connect(config.address) as cluster:
        say(
            f"measuring steps of {', '.join(map(str, rows))} clips on "
            f"{config.workers.max_workers} workers"
        )
        return _measure(config, rows, cluster)


def _measure(config: TrainConfig, rows: tuple[int, ...], cluster: ClusterInfo) -> Tuning:
    num_gpus = gpus_per_worker(config, cluster)
    resources = {"CPU": config.workers.cpus_per_worker}
    if num_gpus:
        resources["GPU"] = num_gpus
    answer: Any = ray.remote(num_cpus=0)(_Answer).remote()
    with tempfile.TemporaryDirectory(prefix="hymotion-tune-") as folder:
        trainer = TorchTrainer(
            _worker,
            train_loop_config={
                "job": _Job(config=config, rows=rows, num_gpus=num_gpus, answer=answer)
            },
            scaling_config=ScalingConfig(
                num_workers=config.workers.max_workers,
                use_gpu=bool(num_gpus),
                resources_per_worker=resources,
            ),
            torch_config=TorchConfig(
                backend="nccl" if num_gpus else "gloo",
                timeout_s=max(1, int(config.failures.collective_timeout_s)),
            ),
            run_config=RunConfig(name="tune", storage_path=folder),
        )
        try:
            trainer.fit()
        except ray.train.TrainingFailedError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise ClusterError(f"tuning failed: {lines[-1][:400] if lines else error}") from error
    found = ray.get(answer.get.remote())
    if not isinstance(found, Tuning):
        raise ClusterError("tuning ended without a result; see the workers' logs and run it again")
    return found


def _worker(settings: dict[str, Any]) -> None:
    job: _Job = settings["job"]
    config = job.config
    device = torch.device("cpu")
    if job.num_gpus:
        device = ray.train.torch.get_device()
    else:
        set_threads(config.workers.cpu_threads)
    origin = find_origin(config, open_dataset(config.data))
    num_frames = min(max(config.input.frame_buckets), origin.base.config.train_frames)
    with naming_the_rank():
        found = tune(
            lambda: origin.build(config),
            lambda rows: made_up_inputs(origin.base.config, rows, num_frames, NUM_TOKENS),
            config.parallel,
            device,
            rows=job.rows,
        )
    if ray.train.get_context().get_world_rank() == 0:
        ray.get(job.answer.put.remote(found))


def made_up_inputs(
    model: ModelConfig, rows: int, num_frames: int, num_tokens: int
) -> tuple[Tensor, ...]:
    """Random inputs of `FlowModel` for `rows` clips, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    network = model.network

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return (
        normal(rows, num_frames, network.input_dim),
        torch.full((rows,), num_frames),
        normal(rows, num_tokens, network.ctxt_input_dim),
        normal(rows, 1, network.vtxt_input_dim),
        torch.full((rows,), num_tokens),
        normal(rows, num_frames, network.input_dim),
        torch.rand(rows, generator=generator),
        torch.zeros(rows, dtype=torch.bool),
    )
