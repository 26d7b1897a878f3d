"""Ray Train against plain torchrun DDP on the same job: steps a second, start-up left out.

    python benchmarks/bench_train.py --repeats 3 --steps 60 --json

Both run `RankRun` on two gloo ranks of one thread each, from the same shards, alternately and with
the same claim to the processor (Ray gives its workers a low one of their own). A run's pace is the
median of its reports' seconds a step, without the first two; its work the processor seconds that
its ranks take for a step, which other load changes little. Ratios are medians over repeats of
torchrun's over Ray Train's. `--torchrun-rank` is what torchrun starts.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Self

import psutil

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from made_shards import small_dataset  # noqa: E402
from train_runs import prepare  # noqa: E402

from hymotion_ray.config.training import TrainConfig  # noqa: E402
from hymotion_ray.config.training_presets import training_preset  # noqa: E402
from hymotion_ray.engine.train.events import read_events  # noqa: E402
from hymotion_ray.engine.train.metrics_file import METRICS_FILE, read_metrics  # noqa: E402

EVERY = 5
NICENESS = "RAY_worker_niceness"
"""Ray reads it as it is spelt."""


def main() -> None:
    """Measure, or be one of torchrun's ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--torchrun-rank", nargs=2, metavar=("DATA", "OUT"))
    args = parser.parse_args()
    if args.torchrun_rank:
        _be_a_rank(_config(Path(args.torchrun_rank[0]), Path(args.torchrun_rank[1]), args))
        return
    with tempfile.TemporaryDirectory(prefix="bench-train-") as folder:
        found = _measure(Path(folder), args)
    print(json.dumps(found) if args.json else json.dumps(found, indent=1))


def _measure(folder: Path, args: argparse.Namespace) -> dict[str, object]:
    from hymotion_ray.engine.cluster import connect

    data = small_dataset(folder / "data", sizes=(40, 40))
    ways: dict[str, dict[str, list[float]]] = {
        what: {"torchrun": [], "ray_train": []} for what in ("wall", "cpu")
    }
    os.environ[NICENESS] = "0"
    with connect() as cluster:
        for repeat in range(args.repeats):
            order = ("torchrun", "ray_train") if repeat % 2 == 0 else ("ray_train", "torchrun")
            for way in order:
                config = _config(data, folder / f"{way}-{repeat}", args)
                job = prepare(config, args.workers)
                with _Work(Path(config.out)) as work:
                    if way == "torchrun":
                        _torchrun(data, config, args)
                    else:
                        from hymotion_ray.engine.train.trainer import fit

                        fit(job, cluster, lambda line: None)
                ways["wall"][way].append(_pace(Path(config.out)))
                ways["cpu"][way].append(work.seconds_a_step())
                print(json.dumps(ways), file=sys.stderr, flush=True)
    return {
        "ray_train_over_torchrun": _ratio(ways["wall"]),
        "ray_train_over_torchrun_cpu": _ratio(ways["cpu"]),
        "seconds_a_step": ways,
        "steps": args.steps,
        "workers": args.workers,
        "preset": args.preset,
        "load": os.getloadavg(),
    }


def _ratio(ways: dict[str, list[float]]) -> float:
    pairs = zip(ways["torchrun"], ways["ray_train"], strict=True)
    return round(statistics.median(a / b for a, b in pairs), 4)


class _Work(threading.Thread):
    """Watches the processor seconds of a run's ranks beside its steps."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self.out, self.seen = out, list[tuple[int, float]]()
        self.ended = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.join()

    def run(self) -> None:
        """Note (step, seconds) about four times a second."""
        while not self.ended.wait(0.25):
            pids = {e["pid"] for e in read_events(self.out) if e["kind"] == "start"}
            rows = read_metrics(self.out / METRICS_FILE)
            with contextlib.suppress(psutil.Error, OSError):
                times = [psutil.Process(pid).cpu_times() for pid in pids]
                if rows and len(times) > 1:
                    step = int(rows[-1]["step"] or 0)
                    self.seen.append((step, sum(t.user + t.system for t in times)))

    def seconds_a_step(self) -> float:
        """Between the first look at a step and the last, start-up left out."""
        first = {step: cpu for step, cpu in reversed(self.seen) if step > 2 * EVERY}
        (low, start), (high, end) = min(first.items()), max(first.items())
        return round((end - start) / (high - low), 5)


def _config(data: Path, out: Path, args: argparse.Namespace) -> TrainConfig:
    config = training_preset(args.preset, data=str(data), out=str(out))
    return dataclasses.replace(
        config,
        max_steps=args.steps,
        global_batch=4 * args.workers,
        micro_batch=4,
        log_every=EVERY,
        tensorboard=False,
        input=dataclasses.replace(config.input, reader="local", frame_buckets=(64,)),
        saving=dataclasses.replace(config.saving, every_steps=args.steps, val_clips=0),
        workers=dataclasses.replace(config.workers, num_workers=str(args.workers), use_gpu="no"),
    )


def _torchrun(data: Path, config: TrainConfig, args: argparse.Namespace) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc_per_node={args.workers}", str(Path(__file__).resolve())),
            *("--steps", str(args.steps), "--workers", str(args.workers)),
            *("--preset", args.preset, "--torchrun-rank", str(data), config.out),
        ],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _be_a_rank(config: TrainConfig) -> None:
    import torch
    import torch.distributed as dist

    from hymotion_ray.engine.train.encode import encoder_name
    from hymotion_ray.engine.train.origin import find_origin
    from hymotion_ray.engine.train.rank_run import RankJob, RankRun
    from hymotion_ray.formats.shards import open_dataset

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = RankJob(
        config=config,
        schedule_steps=config.max_steps,
        encoder=encoder_name(find_origin(config, open_dataset(config.data)), config),
        feature_store=str(Path(config.out) / "text"),
    )
    RankRun(job, torch.device("cpu")).run()
    dist.destroy_process_group()


def _pace(out: Path) -> float:
    rows = read_metrics(out / METRICS_FILE)
    found = [row["step_s/rank0"] for row in rows if (row["step"] or 0) % EVERY == 0]
    return statistics.median([s for s in found[2:] if s is not None])


if __name__ == "__main__":
    main()
