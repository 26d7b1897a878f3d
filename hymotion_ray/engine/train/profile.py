"""The profile of a few steps: what ran, how long, on which shapes, with how much memory. Ray-free.

Knows the schedule (one step passed over, one to warm up, three recorded) and where traces go. Does
not know the loop. The files open in TensorBoard (package torch-tb-profiler) and in Perfetto.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile, schedule

PROFILE_FOLDER = "profile"
WAIT, WARMUP, ACTIVE = 1, 1, 3
_ROWS = 30

log = logging.getLogger(__name__)


class StepProfiler:
    """Records steps 3 to 5 of a run on chosen ranks. Use as a context, call `step` after each.

    Writes `profile/rank<r>.<...>.pt.trace.json` (kernels, shapes, memory, stacks) and
    `profile/rank<r>.txt` (the operations that took longest). On other ranks, and after the last
    recorded step, it costs nothing.
    """

    def __init__(self, folder: Path, *, rank: int, ranks: Sequence[int] = (0,)) -> None:
        """folder: the run's; ranks: those that record."""
        self.folder = folder / PROFILE_FOLDER
        self.rank = rank
        self._left = WAIT + WARMUP + ACTIVE if rank in ranks else 0
        self._profile: profile | None = None

    def __enter__(self) -> StepProfiler:
        if self._left:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._profile = profile(
                activities=_activities(),
                schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
                on_trace_ready=self._write,
                record_shapes=True,
                profile_memory=True,
                with_stack=True,
            )
            self._profile.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._profile is not None:
            running, self._profile = self._profile, None
            running.__exit__(kind, error, trace)

    def step(self) -> None:
        """A step of the loop is done."""
        if self._profile is None:
            return
        self._profile.step()
        self._left -= 1
        if not self._left:
            self.__exit__(None, None, None)

    @property
    def is_recording(self) -> bool:
        """Whether steps are still passed over, warmed up or recorded."""
        return self._profile is not None

    def _write(self, recorded: profile) -> None:
        name = f"rank{self.rank}"
        torch.profiler.tensorboard_trace_handler(str(self.folder), worker_name=name)(recorded)
        on_gpu = ProfilerActivity.CUDA in _activities()
        key = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        averages = recorded.key_averages(group_by_input_shape=True)
        table = averages.table(sort_by=key, row_limit=_ROWS)
        (self.folder / f"{name}.txt").write_text(table, encoding="utf-8")
        log.info("the profile of rank %d lies in %s", self.rank, self.folder)


def _activities() -> list[ProfilerActivity]:
    on_gpu = torch.cuda.is_available()
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
