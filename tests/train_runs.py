"""Training runs without Ray, in this process or in gloo ranks of their own; and what they leave."""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from hymotion_ray.config.fields import override
from hymotion_ray.config.training import TrainConfig
from hymotion_ray.config.training_presets import training_preset
from hymotion_ray.engine import faults
from hymotion_ray.engine.train.checkpoints import FOLDER, checkpoint_name
from hymotion_ray.engine.train.encode import StoreStage, encode_captions, encoder_name, run_here
from hymotion_ray.engine.train.folder import open_run
from hymotion_ray.engine.train.origin import find_origin
from hymotion_ray.engine.train.rank_run import RankJob, RankRun
from hymotion_ray.errors import ClusterError
from hymotion_ray.formats.shards import open_dataset
from hymotion_ray.formats.torch_file import read_torch_file


def debug_config(data: Path, out: Path, *assignments: str, max_steps: int = 6) -> TrainConfig:
    """The debug preset, smaller still."""
    config = training_preset("debug", data=str(data), out=str(out))
    config = dataclasses.replace(config, max_steps=max_steps, tensorboard=False)
    small = ["input.frame_buckets=[32,64]", "saving.every_steps=3", "saving.val_clips=3"]
    return override(config, [*small, *assignments])


def prepare(config: TrainConfig, num_workers: int = 1) -> RankJob:
    """Run folder and captions of a run, as the driver makes them."""
    dataset = open_dataset(config.data)
    origin = find_origin(config, dataset)
    encoder = encoder_name(origin, config)
    folder = open_run(config, origin, dataset, encoder, num_workers)
    store = str(Path(config.out) / "text")
    stage = StoreStage(
        origin=origin,
        placement=config.text,
        llm_path=None,
        clip_path=None,
        store=store,
        encoder=encoder,
        cpu_threads=1,
    )
    encode_captions(stage, dataset, config.input.mirror > 0, run_here, lambda line: None)
    return RankJob(
        config=dataclasses.replace(config, global_batch=folder.global_batch),
        schedule_steps=folder.schedule_steps,
        encoder=encoder,
        feature_store=store,
    )


def train_here(config: TrainConfig) -> int:
    """Train in this process; returns the steps done."""
    return RankRun(prepare(config), torch.device("cpu")).run()


def train_forked(config: TrainConfig, fault_folder: Path) -> int | None:
    """Train in a fork of this process under the faults of a folder; its exit code.

    A fork, so that a run that is killed and started again costs no imports.
    """
    process = multiprocessing.get_context("fork").Process(
        target=_forked, args=(config, str(fault_folder))
    )
    process.start()
    process.join()
    return process.exitcode


def _forked(config: TrainConfig, fault_folder: str) -> None:
    faults.use(fault_folder)
    train_here(config)


def train_ranks(job: RankJob, world_size: int, folder: Path | None = None) -> list[int | None]:
    """Exit codes of a run on gloo ranks, processes of their own, under the faults of a folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    where = None if folder is None else str(folder)
    started = [
        context.Process(target=_rank, args=(job, rank, world_size, port, where))
        for rank in range(world_size)
    ]
    for process in started:
        process.start()
    end = time.monotonic() + 240
    while any(process.is_alive() for process in started) and time.monotonic() < end:
        multiprocessing.connection.wait([p.sentinel for p in started if p.is_alive()], timeout=1.0)
        if any(process.exitcode for process in started):  # the others have time to say so
            end = min(end, time.monotonic() + 40)
    for process in started:
        process.kill()
        process.join()
    return [process.exitcode for process in started]


def _rank(job: RankJob, rank: int, world_size: int, port: int, folder: str | None) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    timeout = timedelta(seconds=job.config.failures.collective_timeout_s)
    dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timeout)
    faults.use(folder)
    try:
        RankRun(job, torch.device("cpu")).run()
    except ClusterError:
        os._exit(3)
    dist.destroy_process_group()


def checkpoint(out: Path, step: int) -> Path:
    """Folder of a step's checkpoint."""
    return Path(out) / FOLDER / checkpoint_name(step)


def tensors(out: Path, step: int) -> dict[str, Tensor]:
    """All tensors of a step's checkpoint: running mean, weights, moments of the optimizer."""
    folder = checkpoint(out, step)
    found = {f"mean/{n}": t for n, t in load_file(folder / "model.safetensors").items()}
    found |= {f"raw/{n}": t for n, t in load_file(folder / "state/weights.safetensors").items()}
    return found | dict(_flat(read_torch_file(folder / "state/optimizer.pt"), "opt"))


def assert_same_bits(one: Path, other: Path, step: int) -> None:
    """Two runs have the same checkpoint at a step, to the bit."""
    a, b = tensors(one, step), tensors(other, step)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def assert_same_weights(one: Path, other: Path, step: int) -> None:
    """Weights of two runs and their means are the same but for rounding.

    AdamW divides by small numbers, so that rounding shows at 1e-3 times the rate.
    """
    a, b = tensors(one, step), tensors(other, step)
    for name in a:
        if name.startswith(("raw/", "mean/")):
            torch.testing.assert_close(a[name], b[name], atol=2e-5, rtol=1e-3, msg=name)


def _flat(value: Any, name: str) -> list[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        return [(name, value)]
    if not isinstance(value, dict | list | tuple):
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [pair for key, part in items for pair in _flat(part, f"{name}/{key}")]
