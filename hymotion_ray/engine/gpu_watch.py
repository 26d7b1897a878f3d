"""What the GPUs of a running job do, second by second: rows for gpu.csv where NVML is there.

One light process a node with GPUs reads NVML every second; the driver fetches its readings every
few seconds and puts beside them what torch has taken in each of the job's own processes. The file
never grows without end: when it is long, every second row goes and the readings become sparser.
"""

from __future__ import annotations

import contextlib
import csv
import io
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hymotion_ray.engine.nodes import living_nodes
from hymotion_ray.engine.worker import Worker
from hymotion_ray.errors import OutputError

COLUMNS = (
    "time",
    "node",
    "index",
    "name",
    "temperature_c",
    "gpu_percent",
    "memory_percent",
    "total_mib",
    "free_mib",
    "used_mib",
    "torch_allocated_mib",
    "torch_reserved_mib",
)
"""Of gpu.csv. The torch columns hold `process=MiB` for each process of the job on that GPU."""

_MIB = 2**20
_EVERY_S = 1.0
_FETCH_EVERY_S = 5.0
_WRITE_EVERY_S = 300.0
_MAX_ROWS = 200_000


@dataclass(frozen=True)
class Reading:
    """One GPU at one time."""

    time: float
    index: int
    name: str
    temperature_c: int
    gpu_percent: int
    memory_percent: int
    total_mib: int
    free_mib: int
    used_mib: int


class NodeGpus:
    """Reads the GPUs of its node from the moment it is made."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []
        self._lock = threading.Lock()
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # noqa: BLE001 - without NVML, for whatever reason, nothing is read
            return
        threading.Thread(target=self._read, args=(pynvml,), daemon=True).start()

    def fetch(self) -> list[Reading]:
        """The readings since the last call."""
        with self._lock:
            readings, self._readings = self._readings, []
        return readings

    def _read(self, nvml: Any) -> None:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        while True:
            readings = []
            for index, handle in enumerate(handles):
                with contextlib.suppress(nvml.NVMLError):
                    readings.append(_reading(nvml, index, handle))
            with self._lock:
                self._readings = (self._readings + readings)[-10_000:]
            time.sleep(_EVERY_S)


def _reading(nvml: Any, index: int, handle: Any) -> Reading:
    name = nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    used = nvml.nvmlDeviceGetUtilizationRates(handle)
    return Reading(
        time=time.time(),
        index=index,
        name=name.decode() if isinstance(name, bytes) else name,
        temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        gpu_percent=used.gpu,
        memory_percent=round(100 * memory.used / memory.total),
        total_mib=memory.total // _MIB,
        free_mib=memory.free // _MIB,
        used_mib=memory.used // _MIB,
    )


class GpuWatch:
    """Collects the readings of a job's GPU nodes in the background. Use as a context manager."""

    def __init__(
        self,
        workers: Callable[[], Sequence[Worker]],
        write: Callable[[bytes], None],
        max_rows: int = _MAX_ROWS,
    ) -> None:
        """`write` takes the whole file, now and then and at the end; without readings never."""
        self._workers, self._write, self._max_rows = workers, write, max_rows
        self._actors: dict[str, Any] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._keep_one_in = 1
        self._num_seen: dict[tuple[str, int], int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for actor in self._actors.values():
            ray.kill(actor)
        self._save()

    def to_csv(self) -> bytes:
        """The rows so far as CSV with a header."""
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(self._rows)
        return sink.getvalue().encode()

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return len(self._rows)

    def _run(self) -> None:
        saved = time.monotonic()
        while not self._stop.wait(_FETCH_EVERY_S):
            self._fetch()
            if time.monotonic() - saved > _WRITE_EVERY_S:
                saved = time.monotonic()
                self._save()
        self._fetch()

    def _save(self) -> None:
        if self._rows:
            with contextlib.suppress(OutputError):  # a full disk shows where clips are written
                self._write(self.to_csv())

    def _fetch(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError):  # a node that left is not read again
            for node in living_nodes():
                if node.num_gpus and node.node_id not in self._actors:
                    self._actors[node.node_id] = (
                        ray.remote(NodeGpus)
                        .options(
                            num_cpus=0,
                            scheduling_strategy=NodeAffinitySchedulingStrategy(
                                node.node_id, soft=False
                            ),
                        )
                        .remote()
                    )
        for node_id, actor in list(self._actors.items()):
            try:
                readings = ray.get(actor.fetch.remote(), timeout=_FETCH_EVERY_S)
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError:
                del self._actors[node_id]
                continue
            self.add(node_id, readings)

    def add(self, node_id: str, readings: Sequence[Reading]) -> None:
        """Take in readings of one node."""
        for reading in readings:
            key = node_id, reading.index
            seen = self._num_seen[key] = self._num_seen.get(key, -1) + 1
            if seen % self._keep_one_in == 0:
                self._rows.append(self._row(node_id, reading))
        if len(self._rows) > self._max_rows:
            self._keep_one_in *= 2
            self._rows = self._thinned()

    def _thinned(self) -> list[tuple[Any, ...]]:
        counts: dict[tuple[str, int], int] = {}
        kept = []
        for row in self._rows:
            key = row[1], row[2]
            counts[key] = counts.get(key, -1) + 1
            if counts[key] % 2 == 0:
                kept.append(row)
        return kept

    def _row(self, node_id: str, reading: Reading) -> tuple[Any, ...]:
        here = [
            w
            for w in self._workers()
            if w.hello is not None
            and w.hello.node_id == node_id
            and str(reading.index) in w.hello.gpus
        ]
        return (
            round(reading.time, 2),
            node_id[:12],
            *[getattr(reading, name) for name in COLUMNS[2:10]],
            ";".join(f"{w.name}={w.memory[0] // _MIB}" for w in here),
            ";".join(f"{w.name}={w.memory[1] // _MIB}" for w in here),
        )
