"""The render pipeline as a literal list of stages; read this first.

prompts -> (rewrite) -> plan | read -> encode -> sample -> decode -> export

What stands left of the bar is settled on the driver before any GPU work (plan.py); the right side
is a streaming Ray Data pipeline. One row of the dataset is one chunk of clips in one grid cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy

from hymotion_ray.config.render import ResourceConfig
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.render.decode import DecodeStage
from hymotion_ray.engine.render.encode import EncodeStage
from hymotion_ray.engine.render.export import ExportStage
from hymotion_ray.engine.render.sample import SampleStage
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.engine.stage import Chunk, Stage, guarded
from hymotion_ray.motion.decode import Decoder

_READ_CPUS = 1.0
"""CPUs that Ray Data's own read and split tasks ask for, one at a time at the least."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Processes and GPU shares of the stages."""

    num_encoders: int
    encoder_gpus: float
    num_samplers: int
    sampler_gpus: float
    sampler_cpus: float
    light_cpus: float
    """CPUs of one encoder, decode or export task."""


def place(resources: ResourceConfig, cluster: ClusterInfo, encoder_is_large: bool) -> Placement:
    """The job's own numbers where given, else what fits the cluster.

    With GPUs: one sampler a GPU; a large encoder takes a quarter of one. Without: one sampler a
    CPU. Samplers ask for less than a CPU each where reading would find no place beside them.
    """
    has_gpus = cluster.num_gpus > 0
    encoder_gpus = resources.encoder_gpus
    if encoder_gpus is None:
        encoder_gpus = 0.25 if has_gpus and encoder_is_large else 0.0
    sampler_gpus = resources.sampler_gpus
    if sampler_gpus is None:
        sampler_gpus = (0.75 if encoder_gpus else 1.0) if has_gpus else 0.0
    num_samplers = resources.num_samplers
    if num_samplers is None:
        num_samplers = int(cluster.num_gpus if sampler_gpus else max(1, cluster.num_cpus))
    # Whole CPUs where they are: Ray starts a worker process for each fraction that fits.
    spare = cluster.total_cpus - _READ_CPUS - num_samplers
    light_cpus = 1.0 if spare >= resources.num_encoders + 1 else 0.25
    left = cluster.total_cpus - _READ_CPUS - light_cpus * (resources.num_encoders + 1)
    return Placement(
        num_encoders=resources.num_encoders,
        encoder_gpus=encoder_gpus,
        num_samplers=num_samplers,
        sampler_gpus=sampler_gpus,
        sampler_cpus=min(1.0, max(0.0, left / num_samplers)),
        light_cpus=light_cpus,
    )


def render_pipeline(
    work_files: list[str],
    filesystem: Any,
    settings: StageSettings,
    decoder: Decoder,
    placement: Placement,
) -> ray.data.Dataset:
    """The dataset whose consumption renders the chunks in `work_files`: a row a finished chunk."""
    return (
        ray.data.read_parquet(work_files, filesystem=filesystem, file_extensions=None)
        .repartition(target_num_rows_per_block=1)
        .map_batches(
            ChunkActor,
            fn_constructor_args=(EncodeStage(settings),),
            compute=ActorPoolStrategy(size=placement.num_encoders),
            num_gpus=placement.encoder_gpus or None,
            num_cpus=placement.light_cpus,
            batch_size=1,
            batch_format="pyarrow",
        )
        .map_batches(
            ChunkActor,
            fn_constructor_args=(SampleStage(settings),),
            compute=ActorPoolStrategy(size=placement.num_samplers, max_tasks_in_flight_per_actor=2),
            num_gpus=placement.sampler_gpus or None,
            num_cpus=placement.sampler_cpus,
            batch_size=1,
            batch_format="pyarrow",
        )
        .map_batches(
            ChunkTask(DecodeStage(decoder), ExportStage(settings)),
            num_cpus=placement.light_cpus,
            batch_size=1,
            batch_format="pyarrow",
        )
    )


class ChunkActor:
    """A stage that keeps its weights: one a process of an actor pool."""

    def __init__(self, stage: Stage) -> None:
        stage.setup()
        self._run = guarded(stage, stage.name)

    def __call__(self, row: pa.Table) -> pa.Table:
        """One chunk, as a table of one row."""
        return self._run(Chunk.from_row(row)).to_row()


class ChunkTask:
    """Two light stages as a stateless task.

    A failed decode is its items' failure; a failed export is the job's, since files that cannot be
    written today can be tomorrow.
    """

    def __init__(self, decode: Stage, export: Stage) -> None:
        self._decode, self._export = decode, export

    def __call__(self, row: pa.Table) -> pa.Table:
        """One chunk, as a table of one row."""
        self._decode.setup()
        self._export.setup()
        decoded = guarded(self._decode, self._decode.name)(Chunk.from_row(row))
        return self._export(decoded).to_row()
