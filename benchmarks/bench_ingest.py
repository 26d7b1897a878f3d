"""Does an ingest of many clips keep its memory, and how fast and how large is it?

    python benchmarks/bench_ingest.py --clips 20000 --out /data/bench        # a generated stream
    python benchmarks/bench_ingest.py --clips 100000 --on-disk --out /data/b # npz files, one a clip

Ingests synthetic clips of 2 to 12 s, then streams one shuffled epoch back. Prints rate, disk an
hour of motion and the memory of the driver and of the largest worker over the run; memory.csv in
--out has the curve. The same command again goes on where a stopped one was; --read-only reads back
what is there. --inline leaves Ray out: all stages in this process, to see what they alone cost.
"""

from __future__ import annotations

import contextlib
import csv
import os
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import click


class MemoryCurve:
    """Samples memory and CPU of this process and its descendants into a CSV file, as it goes: a
    run that is stopped leaves its part, and the next one adds its own.
    """

    def __init__(self, path: Path, every_s: float) -> None:
        self._path, self._every_s = path, every_s
        self._stop = threading.Event()
        self.rows: list[tuple[float, str, float, float, float]] = []
        self._cpu_s: dict[int, float] = {}
        self.phase = "start"

    def __enter__(self) -> MemoryCurve:
        self._start = time.monotonic()
        if not self._path.exists():
            self._path.write_text(
                "run,seconds,phase,driver_mb,largest_worker_mb,all_mb,cpu_seconds\n"
            )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def cpu_s(self) -> float:
        """CPU seconds that all processes have taken so far."""
        return sum(self._cpu_s.values())

    def table(self, phase: str) -> str:
        """Memory at ten even moments of a phase."""
        rows = [row for row in self.rows if row[1] == phase]
        if not rows:
            return "  (too short)"
        picked = [rows[round(k * (len(rows) - 1) / 9)] for k in range(10)]
        lines = ["  seconds   driver MB   largest worker MB   all processes MB"]
        lines += [f"  {t:7.0f}   {d:9.0f}   {w:17.0f}   {a:16.0f}" for t, _, d, w, a in picked]
        return "\n".join(lines)

    def _run(self) -> None:
        with self._path.open("a", newline="") as file:
            writer = csv.writer(file)
            while not self._stop.wait(self._every_s):
                own, workers, total = _memory_mb(os.getpid(), self._cpu_s)
                seconds = round(time.monotonic() - self._start, 1)
                self.rows.append((seconds, self.phase, own, workers, total))
                sizes = [round(size, 1) for size in (own, workers, total, self.cpu_s)]
                writer.writerow([os.getpid(), seconds, self.phase, *sizes])
                file.flush()


def _memory_mb(root: int, cpu_s: dict[int, float]) -> tuple[float, float, float]:
    """Private MB of a process, of the largest Ray worker below it, and of all below it.

    cpu_s: CPU seconds by process, brought up to date; those of ended processes stay.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    below = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        if not more:
            break
        below |= more
    cpu_s |= {pid: ticks[pid] / os.sysconf("SC_CLK_TCK") for pid in below if pid in ticks}
    sizes = {pid: _private_mb(pid) for pid in below}
    workers = [size for pid, size in sizes.items() if pid != root and _is_worker(pid)]
    return sizes[root], max(workers, default=0.0), sum(sizes.values())


def _private_mb(pid: int) -> float:
    """Resident MB without what is shared, as Ray's object store is, which every process shows."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):
        return 0.0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    except OSError:
        return False


def _write_clips(folder: Path, num_clips: int) -> None:
    """Synthetic clips as npz files in AMASS's form, those that are missing."""
    import numpy as np

    from hymotion_ray.engine.dataset.synthetic import synthetic_clip
    from hymotion_ray.formats.motions import save_motion
    from hymotion_ray.formats.sources import to_motion
    from hymotion_ray.motion.skeleton import generic_skeleton

    skeleton = generic_skeleton()
    start = time.monotonic()
    for index in range(num_clips):
        path = folder / f"{index // 1000:04d}" / f"{index:07d}.npz"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        motion, _ = to_motion(synthetic_clip(np.random.default_rng([1, index]), "", 0), skeleton)
        meta = {"prompt": f"a person moves in way {index}", "licence": "CC0-1.0"}
        save_motion(replace(motion, meta=meta), path)
    click.echo(f"{num_clips} npz files in {folder}, {time.monotonic() - start:.0f} s", err=True)


def _inline(module: Any) -> None:
    """Have jobs run their stages in this process, one chunk after another, without a cluster."""
    from hymotion_ray.engine.cluster import ClusterInfo
    from hymotion_ray.engine.dataset.convert import ConvertStage
    from hymotion_ray.engine.dataset.gate import GateStage
    from hymotion_ray.engine.dataset.part import PartWriter, done_chunks
    from hymotion_ray.engine.dataset.read import ReadStage
    from hymotion_ray.engine.dataset.shard import ShardStage

    class InlineJob(module.Job):
        def _read(self, chunks: Any, num_readers: int, progress: Any) -> None:
            read = ReadStage(self.reader, self.config.work.clip_timeout_s)
            convert = ConvertStage(self.skeleton, self.config.licence)
            gate = GateStage(self.config.gates)
            done = done_chunks(self.store)
            for chunk in chunks:
                if chunk.key in done:
                    progress.passed_by(len(chunk.files))
                    continue
                writer = PartWriter(self.store, chunk.key, with_samples=True)
                writer.add(gate(convert(read(chunk.files))))
                writer.close()
                progress.update(len(chunk.files), writer.num_accepted, writer.num_rejected)

        def _shard(self, num_readers: int, progress: Any) -> list[Any]:
            written = []
            for plan in self.catalogue.assign(self.config.splits, self.config.shards):
                written.append(ShardStage(self.config.out, self.config.shards)(plan))
                progress.shard(written[-1].info.num_bytes)
            return written

    here = ClusterInfo(num_cpus=1, total_cpus=1, num_gpus=0, num_nodes=1, started_here=True)
    module.Job, module.connect = InlineJob, lambda _: contextlib.nullcontext(here)


def _read_back(dataset: Any) -> tuple[int, float, Counter[str]]:
    """Clips of one shuffled epoch of train, seconds, and how often each shard was opened."""
    from hymotion_ray.formats import shards

    opened: Counter[str] = Counter()
    open_verified = shards.open_verified

    def counting(dataset: Any, shard: Any) -> Any:
        opened[shard.name] += 1
        return open_verified(dataset, shard)

    shards.open_verified = counting
    start, seen = time.monotonic(), 0
    for clip in shards.iter_shards(dataset, "train", seed=1, epoch=0):
        seen += 1
        assert clip.num_frames >= 20
    return seen, time.monotonic() - start, opened


@click.command()
@click.option("--clips", "num_clips", type=int, default=1000, show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to work in.")
@click.option("--on-disk", is_flag=True, help="One npz file a clip instead of a generated stream.")
@click.option("--clips-per-file", type=int, default=50, show_default=True, help="Of the stream.")
@click.option("--readers", type=int, help="Reader processes.  [default: one a CPU]")
@click.option("--round-files", type=int, help="Files a round.  [default: the config's]")
@click.option("--inline", is_flag=True, help="All stages in this process, without Ray.")
@click.option("--read-only", is_flag=True, help="Read back what an earlier run left; no ingest.")
@click.option("--every", "every_s", type=float, default=2.0, help="Seconds between samples.")
def main(
    num_clips: int,
    out: Path,
    on_disk: bool,
    clips_per_file: int,
    readers: int | None,
    round_files: int | None,
    inline: bool,
    read_only: bool,
    every_s: float,
) -> None:
    """Ingest --clips synthetic clips into --out/dataset and read them back."""
    import torch

    from hymotion_ray.config.ingest import IngestConfig, WorkConfig
    from hymotion_ray.engine.dataset import job
    from hymotion_ray.engine.dataset.report import IngestReport
    from hymotion_ray.engine.dataset.synthetic import SyntheticReader
    from hymotion_ray.formats.shards import SPLITS, open_dataset

    if inline:
        _inline(job)

    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    work = WorkConfig(num_readers=readers, chunk_files=256 if on_disk else 8)
    if round_files:
        work = replace(work, round_files=round_files)
    source = str(out / "clips") if on_disk else "stream"
    if on_disk:
        _write_clips(out / "clips", num_clips)
    reader = (
        None if on_disk else SyntheticReader(num_clips=num_clips, clips_per_file=clips_per_file)
    )
    config = IngestConfig(sources=(source,), out=str(out / "dataset"), work=work)
    with MemoryCurve(out / "memory.csv", every_s) as curve:
        curve.phase = "ingest"
        report = IngestReport(out=config.out)
        if not read_only:
            report = job.run_ingest(config, lambda line: click.echo(line, err=True), reader)
        ingest_cpu_s = curve.cpu_s
        curve.phase = "read"
        dataset = open_dataset(out / "dataset")
        seen, read_s, opened = _read_back(dataset)
        read_cpu_s = curve.cpu_s - ingest_cpu_s
    counts = dataset.manifest["counts"]
    hours = counts["frames"] / 30 / 3600
    size = sum(shard.num_bytes for split in SPLITS for shard in dataset.shards(split))
    assert seen == counts["by_split"]["train"]["clips"]
    click.echo(report.words())
    click.echo(
        f"{counts['clips']} clips, {hours:.2f} h in {len(dataset.manifest['shards'])} shards,"
        f" {size / 1e6:.0f} MB: {size / 1e6 / hours:.1f} MB an hour of motion"
    )
    click.echo(f"ingest: {report.seconds:.0f} s, {report.clips_per_s:.1f} clips/s")
    done = round(report.seconds * report.clips_per_s)
    if done:
        click.echo(
            f"this run: {done} clips in {ingest_cpu_s:.0f} CPU seconds of all processes, Ray's own"
            f" and starting included: {done / ingest_cpu_s:.1f} clips a core-second"
        )
    click.echo(curve.table("ingest"))
    click.echo(
        f"one shuffled epoch: {seen} clips in {read_s:.1f} s ({read_cpu_s:.1f} CPU s),"
        f" {seen / read_s:.0f} clips/s; {len(opened)} shards, none opened more than"
        f" {max(opened.values())} times"
    )
    click.echo(curve.table("read"))


if __name__ == "__main__":
    main()
