"""Reads steps ahead through Ray Data, on any node that has CPUs.

Ray Data streams a plan: the numbers of the steps to come. Its reading processes turn each number
into this rank's micro-batches (`BatchLoader`, a pure function of spec and position), it keeps their
order, and holds them back when training is slower. The shuffle is in the plan and not Ray Data's
own: Ray's `random_shuffle` cannot go on in the middle of an epoch, and drops rows to split evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import ray.data
from ray.data import ActorPoolStrategy, ExecutionResources

from hymotion_ray.engine import faults
from hymotion_ray.engine.cluster import quiet_data
from hymotion_ray.engine.train.loader import BatchLoader, LoaderSpec
from hymotion_ray.engine.train.micro_batch import MicroBatch, pack, unpack

_STEPS_A_BLOCK = 4
_STEPS_A_PLAN = 8192
"""Steps that are planned at once: Ray Data takes its time over plans of ten thousand blocks."""
_READER_CPUS = 0.5


class ReadSteps:
    """A reading process: numbers of steps in, packed micro-batches out."""

    def __init__(self, spec: LoaderSpec, position: int, faults_folder: str | None) -> None:
        faults.use(faults_folder)
        self._loader, self._position = BatchLoader(spec), position

    def __call__(self, rows: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """The steps of a block, in its order."""
        batch = self._loader.spec.global_batch
        packed = np.empty(len(rows["id"]), dtype=object)
        for i, number in enumerate(rows["id"].tolist()):
            faults.reach("read", f"step {number}")
            packed[i] = pack(self._loader.load(self._position + number * batch))
        return {"step": rows["id"], "packed": packed}


def ray_steps(
    spec: LoaderSpec, position: int, num_steps: int, num_readers: int
) -> Iterator[list[MicroBatch]]:
    """The rank's micro-batches of `num_steps` steps from `position` on, in order."""
    for first in range(0, num_steps, _STEPS_A_PLAN):
        length = min(_STEPS_A_PLAN, num_steps - first)
        yield from _planned(spec, position + first * spec.global_batch, length, num_readers)


def _planned(
    spec: LoaderSpec, position: int, num_steps: int, num_readers: int
) -> Iterator[list[MicroBatch]]:
    quiet_data()
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.execution_options.verbose_progress = False
    context.enable_progress_bars = False
    context.execution_options.resource_limits = ExecutionResources(
        cpu=num_readers * _READER_CPUS + 1
    )
    blocks = max(1, -(-num_steps // _STEPS_A_BLOCK))
    steps = ray.data.range(num_steps, override_num_blocks=blocks).map_batches(
        ReadSteps,
        fn_constructor_args=(spec, position, faults.folder()),
        batch_size=_STEPS_A_BLOCK,
        compute=ActorPoolStrategy(size=num_readers),
        num_cpus=_READER_CPUS,
    )
    for number, row in enumerate(steps.iter_rows()):
        assert row["step"] == number, "Ray Data changed the order of the steps"
        yield unpack(row["packed"])
