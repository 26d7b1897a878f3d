"""Ray Train against plain torchrun DDP on the same job: steps a second, start-up left out.

    python benchmarks/bench_train.py --repeats 3 --steps 60 --json

Both run `RankRun` on two gloo ranks of one thread each, from the same shards, alternately. A run's
pace is the median of its reports' seconds a step, without the first two. The ratio is the median
over repeats of torchrun's seconds over Ray Train's. `--torchrun-rank` is what torchrun starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from made_shards import small_dataset  # noqa: E402
from train_runs import prepare  # noqa: E402

from hymotion_ray.config.training import TrainConfig  # noqa: E402
from hymotion_ray.config.training_presets import training_preset  # noqa: E402
from hymotion_ray.engine.train.metrics_file import METRICS_FILE, read_metrics  # noqa: E402

EVERY = 5


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
    seconds: dict[str, list[float]] = {"torchrun": [], "ray_train": []}
    with connect() as cluster:
        for repeat in range(args.repeats):
            order = ("torchrun", "ray_train") if repeat % 2 == 0 else ("ray_train", "torchrun")
            for way in order:
                config = _config(data, folder / f"{way}-{repeat}", args)
                job = prepare(config, args.workers)
                if way == "torchrun":
                    _torchrun(data, config, args)
                else:
                    from hymotion_ray.engine.train.trainer import fit

                    fit(job, cluster, lambda line: None)
                seconds[way].append(_pace(Path(config.out)))
    ratios = [a / b for a, b in zip(seconds["torchrun"], seconds["ray_train"], strict=True)]
    return {
        "ray_train_over_torchrun": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "seconds_a_step": {way: [round(s, 4) for s in found] for way, found in seconds.items()},
        "steps": args.steps,
        "workers": args.workers,
        "preset": args.preset,
        "load": os.getloadavg(),
    }


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
    found = [row["step_s/rank0"] for row in rows if row["step"] % EVERY == 0]
    return statistics.median([s for s in found[2:] if s is not None])


if __name__ == "__main__":
    main()
