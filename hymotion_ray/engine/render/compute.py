"""The part of a render job that computes: chunks through the dispatcher, with all who watch it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.balance import cost, laggards, waiting_words
from hymotion_ray.engine.dispatch import Dispatcher
from hymotion_ray.engine.gpu_watch import GpuWatch
from hymotion_ray.engine.lease import Lease
from hymotion_ray.engine.pool import busy_shares, gpu_seconds
from hymotion_ray.engine.progress import JobProgress
from hymotion_ray.engine.render.closing import Merger
from hymotion_ray.engine.render.extend import Extension
from hymotion_ray.engine.render.report import JobReport
from hymotion_ray.engine.runner import Receipt
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.errors import ClusterError, OutputError
from hymotion_ray.formats.atomic import Store
from hymotion_ray.planning.carried import Expected

_TOLD_FAILURES = 5
_SAMPLES = ("sample", "render")
"""Steps that hold a network."""


@dataclass
class Computation:
    """Runs a dispatcher to its end, or to the end of the failure budget; fills in the report."""

    config: RenderConfig
    store: Store
    dispatcher: Dispatcher
    lease: Lease
    merger: Merger
    report: JobReport
    say: Callable[[str], None]

    def run(self, chunks: Iterator[Chunk], suspects: Iterator[Chunk]) -> None:
        """Compute `chunks`, then `suspects`. What stops that stands in the report."""
        self.lease.tell(self._identities_at_work)
        progress = JobProgress(total=self.report.counts.new)
        try:
            with ExitStack() as stack:
                if any(step.num_gpus for step in self.dispatcher.steps):
                    stack.enter_context(GpuWatch(lambda: self.dispatcher.workers, self._save_gpus))
                stack.enter_context(progress)
                for receipt in self.dispatcher.run(chunks, suspects):
                    self._take(receipt, progress)
                    if self._is_hopeless(progress):
                        break
                else:
                    settled = progress.done + progress.failed
                    assert settled == self.report.counts.new, f"{settled} of all clips settled"
        except (ClusterError, OutputError) as error:
            self._stop(error)
        finally:
            self._sum_up(progress)

    def extend(self, extension: Extension, num_clips: int) -> None:
        """Give `num_clips` finished clips the formats that they lack; fills in the report."""
        progress = JobProgress(total=num_clips, title="formats")
        try:
            with progress:
                for receipt in self.dispatcher.run(extension.chunks()):
                    assert receipt.finished is not None, "the last step says what it finished"
                    num_done, num_failed, error = extension.take(receipt.finished)
                    progress.update(num_done, num_failed, "")
                    if error and progress.failed <= _TOLD_FAILURES:
                        self.say(f"failed: {error}")
                    self._require_lease()
        except (ClusterError, OutputError) as error:
            self._stop(error)
        finally:
            if not self.lease.lost:
                with suppress(OutputError):  # told already, or the next run does it again
                    extension.close()
            self.report.done += progress.done
            self.report.failed += progress.failed
            self.report.seconds += progress.seconds

    def _take(self, receipt: Receipt, progress: JobProgress) -> None:
        assert receipt.finished is not None, "the last step says what it finished"
        (finished,) = receipt.finished.to_pylist()
        self.merger.add(finished["chunk"])
        progress.update(finished["num_done"], finished["num_failed"], finished["device"])
        if finished["precision"]:
            self.report.precision[finished["device"]] = finished["precision"]
        if finished["error"] and progress.failed <= _TOLD_FAILURES:
            self.say(f"failed: {finished['error']}")
        self._require_lease()

    def _require_lease(self) -> None:
        if self.lease.lost:
            raise OutputError(f"another driver has taken over {self.store.url('')}")

    def _stop(self, error: Exception) -> None:
        self.report.stopped = (
            f"{error}. Finished clips are safe; run the same command again to go on"
        )

    def _is_hopeless(self, progress: JobProgress) -> bool:
        budget = self.config.failure_budget(self.report.counts.asked)
        if budget is None or progress.failed <= budget:
            return False
        self.report.stopped = (
            f"{progress.failed} items failed, more than --max-failures {self.config.max_failures};"
            " see failures.jsonl, mend the cause and run the same command again"
        )
        return True

    def _sum_up(self, progress: JobProgress) -> None:
        report, dispatcher = self.report, self.dispatcher
        report.done += progress.done
        report.failed += progress.failed
        report.seconds = progress.seconds
        report.by_device = dict(progress.by_device)
        report.mishaps = dispatcher.mishaps.counts()
        report.stage_seconds = dict(dispatcher.stage_seconds)
        report.busy = busy_shares(dispatcher.pools)
        report.gpu_seconds = gpu_seconds(dispatcher.pools)
        report.cost = cost(report.gpu_seconds, self.config.resources.price_of)
        if report.expected is not None:
            report.planned = self._beside(report.expected, progress)
        sentences = [*laggards(dispatcher.ended), waiting_words(report.busy)]
        for sentence in filter(None, sentences):
            self.say(sentence)

    def _beside(self, expected: Expected, progress: JobProgress) -> dict[str, Any]:
        """What was expected, and what the samplers took."""
        peaks = [p.use.peak_bytes for p in self.dispatcher.pools if p.step.name in _SAMPLES]
        ready = [w.ready_at for kind, w in self.dispatcher.ended if kind.startswith(_SAMPLES)]
        ends = time.monotonic()
        first = min((at for at in ready if at is not None), default=None)
        start_s = None if first is None else max(0.0, progress.seconds - (ends - first))
        return expected.beside(
            clips=progress.done,
            seconds=progress.seconds,
            memory_bytes=max(peaks, default=0),
            start_s=start_s,
        )

    def _identities_at_work(self) -> list[str]:
        return [i for chunk in self.dispatcher.running() for i in chunk.column("identity")]

    def _save_gpus(self, data: bytes) -> None:
        self.store.write_bytes("gpu.csv", data)
