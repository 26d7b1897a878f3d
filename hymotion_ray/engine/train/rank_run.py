"""One rank of a run from its config to its end: model, data, checkpoints, watching. Ray-free.

Ray Train's workers call it, and so does anything else that has started a process group (torchrun,
a test). Knows how the parts are put together, and nothing of what they do.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from hymotion_ray.config.training import TrainConfig
from hymotion_ray.engine.health import check_collectives
from hymotion_ray.engine.train.checkpoints import (
    Restored,
    Staged,
    clear_leftovers,
    newest,
    read_checkpoint,
)
from hymotion_ray.engine.train.events import write_event
from hymotion_ray.engine.train.feed import Prefetched, steps_from
from hymotion_ray.engine.train.full_state import share
from hymotion_ray.engine.train.loader import BatchLoader, LoaderSpec
from hymotion_ray.engine.train.loop import Batches, Callbacks, Training
from hymotion_ray.engine.train.origin import Origin, find_origin
from hymotion_ray.engine.train.parallel import parallelise
from hymotion_ray.engine.train.profile import StepProfiler
from hymotion_ray.engine.train.rank_failure import naming_the_rank
from hymotion_ray.engine.train.saver import Saver
from hymotion_ray.engine.train.watch import Watch
from hymotion_ray.errors import ClusterError
from hymotion_ray.formats.shards import Dataset, open_dataset

StartFeed = Callable[[LoaderSpec, int, int], Iterator[Batches]]
"""Makes a rank's stream from (what to load, first position, number of steps)."""


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """What a rank needs to know; travels to the workers."""

    config: TrainConfig
    """With `global_batch` and all else resolved."""
    schedule_steps: int
    """Total of the schedule: the run folder's first max_steps."""
    encoder: str
    """Name of the text encoder in the feature store."""
    feature_store: str
    """Folder of the captions' features."""


class RankRun:
    """One rank of one attempt at a run."""

    def __init__(self, job: RankJob, device: torch.device) -> None:
        """The default process group, if any, is the caller's and has all ranks in it."""
        self.job, self.config, self.device = job, job.config, device
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.out = Path(job.config.out)
        self._val: Batches | None = None

    def run(self, start_feed: StartFeed | None = None) -> int:
        """Train to the end; returns the steps done.

        start_feed: who reads ahead; None: a thread of this process. Raises the errors of
        `hymotion_ray.errors`, `ClusterError` for a rank that hangs or died, with its name.
        """
        try:
            with naming_the_rank():
                return self._run(start_feed)
        except ClusterError as error:
            self.say(f"rank {self.rank} stopped: {error}")
            raise

    def say(self, text: str) -> None:
        """A line for the user, through the run folder's events file."""
        write_event(self.out, {"kind": "say", "rank": self.rank, "text": text})

    def _run(self, start_feed: StartFeed | None) -> int:
        config = self.config
        check_collectives(min(60.0, config.failures.collective_timeout_s))
        dataset = open_dataset(config.data)
        origin = find_origin(config, dataset)
        parallel = parallelise(origin.build(config), config.parallel, self.device)
        saver = Saver(self.out, origin.base, config.saving, self.say)
        watch = Watch(
            self.out,
            rank=self.rank,
            world_size=self.world_size,
            tensorboard=config.tensorboard,
            trackers=config.trackers,
        )
        profiler = StepProfiler(self.out, rank=self.rank, ranks=config.profile_ranks)
        callbacks = Callbacks(
            log=lambda step, values: self._log(watch, step, values),
            stepped=lambda step: self._stepped(watch, profiler, step),
            say=self.say,
            save=lambda staged, score: self._save(saver, staged, score),
            restore=lambda: self._restore(saver),
        )
        training = Training(
            config,
            origin.base.config.network,
            parallel,
            callbacks,
            rank=self.rank,
            world_size=self.world_size,
            schedule_steps=self.job.schedule_steps,
        )
        if self.rank == 0:
            clear_leftovers(self.out)
        restored = self._restore(saver)
        if restored is not None:
            training.load(restored)
        watch.resume(training.progress.step)
        self._say_start(training.progress.step)
        spec = self._spec(origin, dataset, config.input.split, config.global_batch)
        num_steps = config.max_steps - training.progress.step
        position = training.progress.position
        source = (
            steps_from(BatchLoader(spec).load, position, config.global_batch)
            if start_feed is None
            else start_feed(spec, position, num_steps)
        )
        feed = Prefetched(
            source,
            config.input.prefetch,
            pin=self.device.type == "cuda",
            timeout_s=config.failures.data_timeout_s,
        )
        try:
            with profiler:
                training.run(feed, self._validation(origin, dataset))
        finally:
            feed.close()
            watch.close()
            saver.wait()
        saver.finish()
        return training.progress.step

    def _stepped(self, watch: Watch, profiler: StepProfiler, step: int) -> None:
        profiler.step()
        watch.show(step, self.config.max_steps)

    def _log(self, watch: Watch, step: int, values: Mapping[str, float]) -> None:
        watch.log(step, values)
        if self.rank == 0:
            shown = {"loss": values["loss"], "clips_per_s": values["clips_per_s"]}
            total = self.config.max_steps
            write_event(self.out, {"kind": "report", "step": step, "total": total, **shown})

    def _save(self, saver: Saver, staged: Staged, score: float | None) -> None:
        if self.rank == 0:
            saver.save(staged, score)

    def _restore(self, saver: Saver) -> Restored | None:
        """Rank 0 reads the newest whole checkpoint; the others learn its step and counters."""
        restored = None
        if self.rank == 0:
            saver.wait()
            folder = newest(self.out, self.say)
            restored = None if folder is None else read_checkpoint(folder)
        known = share(None if restored is None else (restored.step, restored.run))
        if restored is None and known is not None:
            empty: dict[str, torch.Tensor] = {}
            restored = Restored(
                step=known[0],
                weights=empty,
                mean=empty,
                optimizer={"optimizer": {}},
                run=known[1],
            )
        return restored

    def _spec(self, origin: Origin, dataset: Dataset, split: str, clips: int) -> LoaderSpec:
        config = self.config
        return LoaderSpec(
            data=config.data,
            split=split,
            global_batch=clips,
            micro_batch=config.micro_batch,
            shares=config.workers.shares or (1.0,) * self.world_size,
            rank=self.rank,
            rules=origin.rules(config, dataset),
            feature_store=self.job.feature_store,
            encoder=self.job.encoder,
        )

    def _validation(self, origin: Origin, dataset: Dataset) -> Callable[[], Batches] | None:
        num_clips = min(self.config.saving.val_clips, dataset.num_clips("val"))
        if not num_clips:
            return None
        spec = self._spec(origin, dataset, "val", num_clips)

        def batches() -> Batches:
            if self._val is None:
                self._val = BatchLoader(spec.for_validation()).load(0)
            return self._val

        return batches

    def _say_start(self, step: int) -> None:
        event = {
            "kind": "start",
            "rank": self.rank,
            "world_size": self.world_size,
            "host": socket.gethostname(),
            "node_id": os.environ.get("HYMOTION_NODE_ID", ""),
            "pid": os.getpid(),
            "device": str(self.device),
            "step": step,
        }
        write_event(self.out, event)
