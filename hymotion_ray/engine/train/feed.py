"""Reads steps ahead in a thread or in processes, and pins them for the copy to a GPU. Ray-free.

Knows a loader and positions. The order of what comes out is that of the positions, whatever the
thread's pace; what it raises is raised to whoever asks for the step, and so is a long silence.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator

from torch.utils.data import DataLoader, Dataset

from hymotion_ray.engine.train.loader import BatchLoader, LoaderSpec
from hymotion_ray.engine.train.micro_batch import MicroBatch
from hymotion_ray.errors import ClusterError

_PATIENCE_S = 5.0


def steps_from(
    load: Callable[[int], list[MicroBatch]], position: int, global_batch: int
) -> Iterator[list[MicroBatch]]:
    """The steps from a position on, one after another, loaded when asked for."""
    return (load(at) for at in itertools.count(position, global_batch))


class _Steps(Dataset[list[MicroBatch]]):
    """Steps by number, each loaded where it is asked for."""

    def __init__(self, spec: LoaderSpec, position: int, num_steps: int) -> None:
        self._spec, self._position, self._num_steps = spec, position, num_steps
        self._loader: BatchLoader | None = None

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, number: int) -> list[MicroBatch]:
        if self._loader is None:  # in the process that reads
            self._loader = BatchLoader(self._spec)
        return self._loader.load(self._position + number * self._spec.global_batch)


def process_steps(
    spec: LoaderSpec, position: int, num_steps: int, num_readers: int
) -> Iterator[list[MicroBatch]]:
    """The rank's micro-batches of `num_steps` steps from `position` on, in order.

    Read by `num_readers` processes of this machine, two steps ahead each.
    """
    steps = _Steps(spec, position, num_steps)
    # Spawned: a process that has touched a GPU must not fork.
    loader = DataLoader(
        steps, batch_size=None, num_workers=num_readers, multiprocessing_context="spawn"
    )
    yield from loader


class Prefetched(Iterator[list[MicroBatch]]):
    """Takes steps from `source` in a thread, up to `depth` ahead. Close it at the end."""

    def __init__(
        self, source: Iterator[list[MicroBatch]], depth: int, pin: bool, timeout_s: float
    ) -> None:
        """pin: whether a GPU copies from what comes out; timeout_s: longest wait for a step."""
        self._source, self._pin, self._timeout_s = source, pin, timeout_s
        self._queue: queue.Queue[list[MicroBatch] | BaseException] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="feed", daemon=True)
        self._thread.start()

    def __next__(self) -> list[MicroBatch]:
        try:
            item = self._queue.get(timeout=self._timeout_s)
        except queue.Empty as silent:
            raise ClusterError(
                f"no clips to train on came within {self._timeout_s:g} s: the storage or a reading"
                " process hangs. Look at both, and raise failures.data_timeout_s if they are slow"
            ) from silent
        if isinstance(item, BaseException):
            self._queue.put(item)  # for whoever asks again
            raise item
        return item

    def close(self) -> None:
        """End the thread; what it read ahead is dropped. One that hangs in its source is left."""
        self._stop.set()
        end = time.monotonic() + _PATIENCE_S
        while self._thread.is_alive() and time.monotonic() < end:
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue

    def _read(self) -> None:
        try:
            for step in self._source:
                ready = [batch.pinned() for batch in step] if self._pin else step
                if not self._put(ready):
                    return
            self._put(StopIteration())
        except BaseException as error:  # noqa: BLE001 - raised to the loop
            self._put(error)

    def _put(self, item: list[MicroBatch] | BaseException) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False
