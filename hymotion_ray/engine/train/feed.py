"""Reads steps ahead in a thread, and pins them for the copy to a GPU. Ray-free.

Knows a loader and positions. The order of what comes out is that of the positions, whatever the
thread's pace; what it raises is raised to whoever asks for the step.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from hymotion_ray.engine.train.micro_batch import MicroBatch

T = TypeVar("T")


def steps_from(
    load: Callable[[int], list[MicroBatch]], position: int, global_batch: int
) -> Iterator[list[MicroBatch]]:
    """The steps from a position on, one after another, loaded when asked for."""
    return (load(at) for at in itertools.count(position, global_batch))


class Prefetched(Iterator[list[MicroBatch]]):
    """Takes steps from `source` in a thread, up to `depth` ahead. Close it at the end."""

    def __init__(self, source: Iterator[list[MicroBatch]], depth: int, pin: bool) -> None:
        """pin: whether a GPU copies from what comes out."""
        self._source, self._pin = source, pin
        self._queue: queue.Queue[list[MicroBatch] | BaseException] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="feed", daemon=True)
        self._thread.start()

    def __next__(self) -> list[MicroBatch]:
        item = self._queue.get()
        if isinstance(item, BaseException):
            self._queue.put(item)  # for whoever asks again
            raise item
        return item

    def close(self) -> None:
        """End the thread; what it read ahead is dropped."""
        self._stop.set()
        while self._thread.is_alive():
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
