"""Watching a training: numbers of a step to files and trackers, the pace, the rank that lags.

Knows what is measured and where it goes. Does not know the model, the data or the loop: the loop
tells it what it waits for and when a step is done. Ray-free.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from hymotion_ray.engine.progress import JobProgress
from hymotion_ray.engine.train.metrics_file import METRICS_FILE, MetricsFile
from hymotion_ray.engine.train.trackers import (
    TRACKERS,
    TensorBoard,
    Tracker,
    check_trackers,
    has_tensorboard,
)

STRAGGLER_FACTOR = 1.3
"""A rank lags when its own work takes this many times the median of the others."""
_SHOWN = ("loss", "clips_per_s")


class Watch:
    """The numbers of a run: metrics.jsonl, TensorBoard events, trackers, a line of progress.

    folder: the run's. Only rank 0 writes; on the others every method returns at once. tensorboard:
    write events where the package is installed. trackers: names of `TRACKERS`. Raises `ConfigError`
    for an unknown tracker and `MissingDependencyError` for one that is not installed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        world_size: int,
        tensorboard: bool,
        trackers: Sequence[str] = (),
    ) -> None:
        check_trackers(trackers)
        self.folder = folder
        self.world_size = world_size
        self._is_writer = rank == 0
        self._file = MetricsFile(folder / METRICS_FILE)
        self._tensorboard = tensorboard and has_tensorboard()
        self._names = tuple(trackers)
        self._trackers: list[Tracker] | None = None
        self._progress: JobProgress | None = None

    def resume(self, step: int) -> None:
        """Go on behind `step`, the checkpoint's: lines of later steps are dropped."""
        if self._is_writer:
            self._file.rewind(step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of a step. Steps rise within a run; the first one drops what is left of
        it and of later ones from a run before. `OutputError` when the disk is full.
        """
        if not self._is_writer:
            return
        self._file.append(step, values)
        if self._trackers is None:
            self._trackers = self._open_trackers(step)
        for tracker in self._trackers:
            tracker.log(step, values)
        if self._progress is not None:
            shown = [f"{name} {values[name]:.4g}" for name in _SHOWN if name in values]
            self._progress.note = ", ".join(shown)

    def show(self, step: int, max_steps: int) -> None:
        """Move the bar, or write the line of progress when it is time. Call it every step."""
        if not self._is_writer:
            return
        if self._progress is None:
            self._progress = JobProgress(total=max_steps, title="train", unit="steps")
            self._progress.done = step - 1
            self._progress.__enter__()
        self._progress.update(step - self._progress.done, 0, "")

    def close(self) -> None:
        """Write what is held back and end the bar."""
        for tracker in self._trackers or ():
            tracker.close()
        self._trackers = None
        if self._progress is not None:
            self._progress.__exit__()
            self._progress = None

    def _open_trackers(self, first_step: int) -> list[Tracker]:
        opened: list[Tracker] = []
        if self._tensorboard:
            opened.append(TensorBoard(self.folder, first_step))
        return opened + [TRACKERS[name](self.folder, first_step) for name in self._names]


def gather_ranks(values: Mapping[str, float]) -> list[dict[str, float]]:
    """The numbers of every rank, in the order of the ranks, on every rank.

    All ranks call it with the same names. Without a process group: this process's alone.
    """
    names = sorted(values)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [{name: float(values[name]) for name in names}]
    on_gpu = dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    own = torch.tensor([float(values[n]) for n in names], dtype=torch.float64, device=device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    return [dict(zip(names, row.tolist(), strict=True)) for row in gathered]


def straggler(step_times: Sequence[float], factor: float = STRAGGLER_FACTOR) -> int | None:
    """The rank whose own work (`own_s` of `StepClock`) lags, or None.

    It lags when its seconds are `factor` times the median of the other ranks' or more. Times from
    one synchronised step to the next are no use here: they are the slowest rank's on every rank.
    """
    if len(step_times) < 2:
        return None
    slowest = max(range(len(step_times)), key=step_times.__getitem__)
    others = [t for rank, t in enumerate(step_times) if rank != slowest]
    return slowest if step_times[slowest] >= factor * statistics.median(others) > 0 else None


def per_rank(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Gathered numbers as values of `Watch.log`: {"loss/rank1": ...} for the given names.

    `straggler` is added where the rows hold `own_s`: the rank that lags, or -1.
    """
    found = {f"{n}/rank{rank}": row[n] for n in names for rank, row in enumerate(rows) if n in row}
    if all("own_s" in row for row in rows):
        lagging = straggler([row["own_s"] for row in rows])
        found["straggler"] = -1 if lagging is None else lagging
    return found
