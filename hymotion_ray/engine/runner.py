"""Runs stages on one chunk after another in this process, and says how each went. Ray-free.

Whatever a stage raises becomes a `Failure`, `sys.exit` included: the process that asked decides
what becomes of the items.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from hymotion_ray.engine import faults, pulse
from hymotion_ray.engine.stage import Chunk, Stage
from hymotion_ray.errors import HyMotionError, OutputError, ReplicaLostError


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a chunk did not get through a stage."""

    stage: str
    """Name of the stage."""
    text: str
    """Type and message of what was raised."""
    stops_job: bool = False
    """Whether it is the job's failure (the outputs cannot be written) and not the items'."""
    taints_process: bool = False
    """Whether the process may not be trusted any more: a CUDA context that met a fault is lost, and
    so is a group of processes that one has left."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """How one chunk went through the stages of one process."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds in each stage."""
    failure: Failure | None = None
    """What went wrong, if anything."""
    finished: pa.Table | None = None
    """The items as the last stage of the pipeline left them; None after earlier stages."""
    peak_bytes: int = 0
    """The most memory that the process has taken so far."""


class StageRunner:
    """The stages of one process."""

    def __init__(self, stages: Sequence[Stage], *, is_last: bool) -> None:
        """`is_last` says whether the pipeline ends with these stages."""
        self._stages = list(stages)
        self._is_last = is_last

    def setup(self) -> None:
        """Load what the stages need; raises what they raise."""
        for stage in self._stages:
            faults.reach(f"setup-{stage.name}")
            stage.setup()
            pulse.beat()

    def run(self, row: pa.Table) -> tuple[pa.Table | None, Receipt]:
        """One chunk (as `Chunk.to_row` gives it) through the stages: the chunk, and its receipt."""
        chunk = Chunk.from_row(row)
        seconds: dict[str, float] = {}
        for stage in self._stages:
            pulse.beat()
            start = time.perf_counter()
            try:
                chunk = self._call(stage, chunk)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the asking process decides
                return None, Receipt(seconds=seconds, failure=_failure(stage.name, error))
            seconds[stage.name] = time.perf_counter() - start
        if self._is_last:
            return None, Receipt(seconds=seconds, finished=chunk.items)
        return chunk.to_row(), Receipt(seconds=seconds)

    def _call(self, stage: Stage, chunk: Chunk) -> Chunk:
        is_end = self._is_last and stage is self._stages[-1]
        if not chunk.alive and not is_end:
            return chunk.with_tensors({})
        if faults.folder() is None:
            return stage(chunk)
        detail = " | ".join(str(chunk.items["text"][i]) for i in chunk.alive)
        faults.reach(stage.name, detail)
        chunk = stage(chunk)
        faults.reach(f"{stage.name}-done", detail)
        return chunk


def _failure(stage: str, error: BaseException) -> Failure:
    if isinstance(error, OutputError):
        return Failure(stage=stage, text=str(error), stops_job=True)
    kind = "" if isinstance(error, HyMotionError) else f"{type(error).__name__}: "
    text = f"{stage}: {kind}{error}"
    is_cuda = "CUDA error" in text or type(error).__name__ == "AcceleratorError"
    is_lost = is_cuda or isinstance(error, ReplicaLostError)
    return Failure(stage=stage, text=text, taints_process=is_lost)
