"""How a step's time is spent: waiting for data, own work, the rest; clips a second; MFU; memory.

On a GPU the host runs ahead of the device: own work is timed by events on the device, and the
device is waited for only when the clock is read. Does not know the loop. Ray-free.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator

import torch

from hymotion_ray.engine.train.mfu import peak_flops


class StepClock:
    """Times of the steps since the last `read`.

    Around each step of the loop::

        with clock.waiting():
            batch = next(batches)
        with clock.working():  # what waits for no other rank: the forward pass
            loss = model(batch)
        loss.backward()
        clock.step(num_clips=len(batch), num_flops=...)
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """device: the one that computes."""
        self.device = torch.device(device)
        self._on_gpu = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if self._on_gpu else ""
        self._peak = peak_flops(name)
        self._restart()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Time in here is a wait for data."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._waited += time.perf_counter() - start

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Time in here is this rank's own work, without a wait for other ranks."""
        start = time.perf_counter()
        begin = self._event()
        try:
            yield
        finally:
            end = self._event()
            if begin is None or end is None:
                self._worked += time.perf_counter() - start
            else:
                self._events.append((begin, end))

    def step(self, *, num_clips: int, num_flops: float = 0.0) -> None:
        """A step is done; num_flops: floating-point operations of this rank (`train_flops`)."""
        self._steps += 1
        self._clips += num_clips
        self._flops += num_flops

    def read(self) -> dict[str, float]:
        """The numbers since the last read, and a new start; empty before the first step.

        `step_s`, `own_s` (data wait and own work, a step), `data_wait_percent`, `clips_per_s` (this
        rank's), `memory_gib` (the most that was allocated on the GPU, or this process's largest
        resident size) and, on a GPU of known peak, `mfu` (0 to 1).
        """
        if not self._steps:
            return {}
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
        seconds = max(time.perf_counter() - self._start, 1e-9)
        worked = self._worked + sum(a.elapsed_time(b) for a, b in self._events) / 1000
        values = {
            "step_s": seconds / self._steps,
            "own_s": (self._waited + worked) / self._steps,
            "data_wait_percent": 100 * min(1.0, self._waited / seconds),
            "clips_per_s": self._clips / seconds,
            "memory_gib": self._memory_bytes() / 2**30,
        }
        if self._peak is not None and self._flops:
            values["mfu"] = self._flops / seconds / self._peak
        self._restart()
        return values

    def _restart(self) -> None:
        self._start = time.perf_counter()
        self._waited = self._worked = self._flops = 0.0
        self._steps = self._clips = 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def _event(self) -> torch.cuda.Event | None:
        if not self._on_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _memory_bytes(self) -> float:
        if self._on_gpu:
            return float(torch.cuda.max_memory_allocated(self.device))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
