from __future__ import annotations

import csv
import io
from dataclasses import replace
from itertools import pairwise

from hymotion_ray.engine.gpu_watch import COLUMNS, GpuWatch, Reading
from hymotion_ray.engine.worker import Hello, Worker

READING = Reading(1000.0, 0, "A100", 60, 97, 40, 81920, 49152, 32768)


def rows(watch: GpuWatch) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(watch.to_csv().decode())))


def worker(name: str, node: str, gpu: str) -> Worker:
    hello = Hello(node_id=node, pid=1, gpus=(gpu,), gpu_share=0.5, kind="A100", build="")
    return Worker(name, actor=None, ready=None, hello=hello, memory=(3 * 2**20, 5 * 2**20))


def test_a_row_names_what_each_process_holds_of_its_gpu() -> None:
    workers = [worker("sample-1", "n1", "0"), worker("encode-1", "n1", "0")]
    watch = GpuWatch(
        lambda: [*workers, worker("sample-2", "n2", "0"), worker("x", "n1", "1")], print
    )
    watch.add("n1", [READING])
    (row,) = rows(watch)
    assert tuple(row) == COLUMNS
    assert row["name"] == "A100"
    assert row["used_mib"] == "32768"
    assert row["torch_allocated_mib"] == "sample-1=3;encode-1=3"
    assert row["torch_reserved_mib"] == "sample-1=5;encode-1=5"


def test_a_long_watch_becomes_sparser_and_covers_all_of_it() -> None:
    watch = GpuWatch(list, print, max_rows=100)
    for second in range(10_000):
        watch.add("n", [replace(READING, time=float(second), index=i) for i in (0, 1)])
    times = [float(row["time"]) for row in rows(watch) if row["index"] == "1"]
    assert watch.num_rows <= 101
    assert times[0] == 0
    assert times[-1] > 9_500
    gaps = {b - a for a, b in pairwise(times)}
    assert len(gaps) == 1
