"""The ingest pipeline as literal lists of stages; read this first.

list | read -> convert -> gate -> (scratch) | dedupe | shard -> (dataset)

What stands between bars in one place runs in one process: listing and the search for duplicates on
the driver, in SQLite files, by a few words a clip; the rest as streaming Ray Data pipelines, whose
rows are chunks of source files, then shards. Motions go through the workers' memory and the scratch
folder, one chunk at a time, and never to the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data import TaskPoolStrategy

from hymotion_ray.engine.dataset.catalogue import ShardPlan
from hymotion_ray.engine.dataset.convert import ConvertStage
from hymotion_ray.engine.dataset.gate import GateStage
from hymotion_ray.engine.dataset.listing import WorkChunk
from hymotion_ray.engine.dataset.part import PartWriter
from hymotion_ray.engine.dataset.read import ReadStage
from hymotion_ray.engine.dataset.shard import ShardStage
from hymotion_ray.formats.atomic import open_store


def clip_pipeline(
    chunks: Iterable[tuple[WorkChunk, bool]], task: ChunkTask, num_readers: int
) -> ray.data.Dataset:
    """The dataset whose consumption reads `chunks`: a row a finished chunk.

    With each chunk comes whether it keeps samples of rejected motions.
    """
    tables = [
        pa.table({"chunk": [chunk.key], "files": [chunk.to_json()], "with_samples": [with_samples]})
        for chunk, with_samples in chunks
    ]
    return ray.data.from_arrow(tables).map_batches(
        task,
        compute=TaskPoolStrategy(size=min(num_readers, len(tables))),
        num_cpus=1,
        batch_size=1,
        batch_format="pyarrow",
    )


def shard_pipeline(
    plans: Sequence[ShardPlan], stage: ShardStage, num_readers: int
) -> ray.data.Dataset:
    """The dataset whose consumption writes the shards of `plans`: a row a shard."""
    tables = [pa.table({"plan": [plan.to_json()]}) for plan in plans]
    return ray.data.from_arrow(tables).map_batches(
        ShardTask(stage),
        compute=TaskPoolStrategy(size=min(num_readers, len(tables))),
        num_cpus=1,
        batch_size=1,
        batch_format="pyarrow",
    )


@dataclass(frozen=True)
class ChunkTask:
    """Reads one chunk through to the scratch folder; clips go through the stages one by one."""

    read: ReadStage
    convert: ConvertStage
    gate: GateStage
    out: str
    attempts: Any
    """Handle of the job's `Attempts` actor."""

    def __call__(self, row: pa.Table) -> pa.Table:
        """One chunk, as a table of one row; out: its counts."""
        import torch

        torch.set_num_threads(1)
        chunk = WorkChunk.from_json(row["chunk"][0].as_py(), row["files"][0].as_py())
        node = ray.get_runtime_context().get_node_id()
        alive = [n["NodeID"] for n in ray.nodes() if n["Alive"]]
        careful, given_up = ray.get(self.attempts.begin.remote(chunk.key, node, alive))

        def announce(index: int | None) -> None:
            if careful:
                ray.get(self.attempts.reading.remote(chunk.key, index))

        writer = PartWriter(
            open_store(self.out), chunk.key, with_samples=row["with_samples"][0].as_py()
        )
        clips = self.read(chunk.files, given_up, announce)
        pieces = self.convert(clips)
        judged = self.gate(pieces)
        writer.add(judged)
        writer.close()
        ray.get(self.attempts.end.remote(chunk.key))
        return pa.table(
            {
                "num_files": [len(chunk.files)],
                "num_accepted": [writer.num_accepted],
                "num_rejected": [writer.num_rejected],
            }
        )


@dataclass(frozen=True)
class ShardTask:
    """Writes one shard."""

    stage: ShardStage

    def __call__(self, row: pa.Table) -> pa.Table:
        """One plan, as a table of one row; out: what was written."""
        written = self.stage(ShardPlan.from_json(row["plan"][0].as_py()))
        return pa.table({"written": [written.to_json()]})
