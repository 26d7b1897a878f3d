"""What each rank of `test_parallel.py`'s process group does; results go to a file, for the tests.

One process group serves all checks, because starting processes is dear.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from made_shards import small_dataset
from torch import Tensor, nn
from train_runs import debug_config, prepare, tensors

from hymotion_ray.config import NetworkConfig
from hymotion_ray.config.fields import override
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.comm_bytes import expected_bytes, written_bytes
from hymotion_ray.engine.train.full_state import gather, share
from hymotion_ray.engine.train.lora import num_trained
from hymotion_ray.engine.train.parallel import Parallel, parallelise
from hymotion_ray.engine.train.rank_failure import naming_the_rank
from hymotion_ray.engine.train.rank_run import RankRun
from hymotion_ray.engine.train.tune import tune
from hymotion_ray.errors import CheckpointError, ClusterError, ConfigError
from hymotion_ray.model.mmdit import MotionMMDiT

NETWORK = NetworkConfig(
    feat_dim=64,
    num_layers=3,
    num_heads=2,
    ctxt_input_dim=24,
    vtxt_input_dim=24,
    mask_mode="narrowband",
    time_factor=1000.0,
    apply_rope_to_single_branch=False,
    refiner_num_layers=1,
)
CPU = torch.device("cpu")
NUM_ROWS, NUM_FRAMES, NUM_TOKENS = 4, 20, 5
NUM_STEPS = 3
TIMEOUT_S = 240
Run = tuple[Parallel, list[float]]


def make_network(seed: int = 0) -> MotionMMDiT:
    """A small network of random weights, none of them zero."""
    torch.manual_seed(seed)
    network = MotionMMDiT(NETWORK, 64)
    for parameter in network.parameters():
        deviation = 0.2 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5
        nn.init.normal_(parameter, std=deviation)
    return network


def make_batch(step: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Inputs and wanted outputs of a step, all rows."""
    generator = torch.Generator().manual_seed(1000 + step)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    inputs = (
        normal(NUM_ROWS, NUM_FRAMES, 201),
        normal(NUM_ROWS, NUM_TOKENS, 24),
        normal(NUM_ROWS, 1, 24),
        torch.rand(NUM_ROWS, generator=generator),
        torch.full((NUM_ROWS,), NUM_FRAMES),
        torch.full((NUM_ROWS,), NUM_TOKENS),
    )
    return inputs, normal(NUM_ROWS, NUM_FRAMES, 201)


def loss_of(parallel: Parallel, step: int, rows: slice) -> Tensor:
    """Mean squared error over some rows of a step's batch."""
    inputs, wanted = make_batch(step)
    output = parallel.module(*[part[rows] for part in inputs])
    return (output.float() - wanted[rows]).square().mean()


def start(config: ParallelConfig, seed: int = 0) -> Parallel:
    parallel = parallelise(make_network(seed), config, CPU)
    parallel.make_optimizer(3e-3, (0.9, 0.98), 0.01)
    return parallel


def my_rows() -> slice:
    """This rank's rows of a batch; all of them without a group."""
    if not dist.is_initialized():
        return slice(0, NUM_ROWS)
    share = NUM_ROWS // dist.get_world_size()
    return slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)


def step(parallel: Parallel, number: int) -> tuple[float, bool]:
    """One optimizer step; the gradient's norm, and whether the step was taken."""
    parallel._made_optimizer().zero_grad()
    parallel.backward(loss_of(parallel, number, my_rows()))
    norm = float(parallel.clip_grad_norm(1.0))
    return norm, parallel.step()


def gradients(parallel: Parallel) -> dict[str, Tensor]:
    return gather({name: p.grad for name, p in parallel.parameters.items() if p.grad is not None})


def train(config: ParallelConfig, seed: int = 0) -> dict[str, Any]:
    """A few steps: first gradient, norms, weights and moments after them, at rank 0."""
    parallel = start(config, seed)
    parallel.backward(loss_of(parallel, 0, my_rows()))
    first = gradients(parallel)
    norms = [step(parallel, number)[0] for number in range(NUM_STEPS)]
    return {
        "gradient": first,
        "norms": norms,
        "state": parallel.full_state(),
        "optimizer": parallel.optimizer_state(),
    }


def spread(config: ParallelConfig) -> dict[str, Any]:
    """What a rank holds and sends in one pass and step, against the whole."""
    parallel = start(config)
    for number in range(3):
        step(parallel, number)
    parallel._made_optimizer().zero_grad()
    trained, num_all = num_trained(parallel._network)
    sent = _sent()
    loss = loss_of(parallel, 3, slice(0, 1))
    mid_pass = parallel.held().parameters
    parallel.backward(loss)
    held = parallel.held()
    parallel.step()
    sent = _sent() - sent
    return {
        "parameters": held.parameters / (4 * num_all),
        "gradients": held.gradients / (4 * trained),
        "optimizer": held.optimizer / (8 * trained),
        "mid_pass": mid_pass / (4 * num_all),
        "sent": sent,
        "expected": expected_bytes(config, trained, num_all, dist.get_world_size()),
    }


def _sent() -> int:
    dist.barrier()
    return written_bytes() or 0


def accumulation(strategy: Any) -> dict[str, Any]:
    """The gradient of a batch in two halves, and the bytes that the first half sent."""
    parallel = start(ParallelConfig(strategy=strategy))
    rows = my_rows()
    middle = (rows.start + rows.stop) // 2
    sent = _sent()
    with parallel.no_sync():
        parallel.backward(loss_of(parallel, 0, slice(rows.start, middle)) / 2)
    sent = _sent() - sent
    parallel.backward(loss_of(parallel, 0, slice(middle, rows.stop)) / 2)
    return {"gradient": gradients(parallel), "sent": sent}


def fit(config: ParallelConfig, num_steps: int = 24) -> list[float]:
    """Losses of a network that learns one batch by heart."""
    parallel = start(config)
    losses = []
    for _ in range(num_steps):
        parallel._made_optimizer().zero_grad()
        loss = loss_of(parallel, 0, my_rows())
        parallel.backward(loss)
        parallel.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / dist.get_world_size())
    return losses


def not_finite() -> list[float]:
    """Norms of PowerSGD's steps around one whose gradient is not finite, on the last rank."""
    parallel = start(ParallelConfig(comm_hook="powersgd", powersgd_start=2, powersgd_rank=2))
    norms = []
    for number in range(6):
        parallel._made_optimizer().zero_grad()
        loss = loss_of(parallel, number, my_rows())
        is_bad = number == 4 and dist.get_rank() == dist.get_world_size() - 1
        parallel.backward(loss * float("nan") if is_bad else loss)
        norms.append(float(parallel.clip_grad_norm(1.0)))
        if number != 4:
            parallel.step()
    return norms


def messages(bucket_mb: int) -> int:
    """All-reduces that one backward pass makes."""
    parallel = start(ParallelConfig(bucket_mb=bucket_mb))
    parallel.backward(loss_of(parallel, 0, my_rows()))  # buckets are settled after the first pass
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        parallel.backward(loss_of(parallel, 0, my_rows()))
    return sum(event.name == "gloo:all_reduce" for event in profile.events())


def overflow(strategy: Any) -> dict[str, Any]:
    """A float16 step at a scale that overflows on the last rank's rows only."""
    config = ParallelConfig(strategy=strategy, precision="float16", loss_scale=2.0**14)
    parallel = start(config)
    before = parallel.full_state()
    inputs, wanted = make_batch(0)
    wanted[-1] *= 1e6
    output = parallel.module(*[part[my_rows()] for part in inputs])
    parallel.backward((output.float() - wanted[my_rows()]).square().mean())
    parallel.clip_grad_norm(1.0)
    taken = parallel.step()
    after = parallel.full_state()
    same = all(torch.equal(before[name], after[name]) for name in before)
    scale = parallel.optimizer_state().get("scaler", {}).get("scale")
    _, taken_next = step(parallel, 1)
    return {"taken": taken, "same": same, "scale": scale, "taken_next": taken_next}


def resume(first: ParallelConfig, second: ParallelConfig) -> dict[str, Any]:
    """Weights after three steps and one more, unbroken and through a saved state."""
    unbroken, broken = start(first), start(second, seed=5)
    for number in range(NUM_STEPS):
        step(unbroken, number)
    saved = unbroken.full_state(), unbroken.optimizer_state()
    broken.load_full_state(saved[0])
    broken.load_optimizer_state(saved[1])
    for parallel in (unbroken, broken):
        step(parallel, NUM_STEPS)
    return {
        "unbroken": unbroken.full_state(),
        "resumed": broken.full_state(),
        "saved": saved,
        "scales": [p.optimizer_state().get("scaler") for p in (unbroken, broken)],
    }


def error_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except (ConfigError, CheckpointError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def another_network() -> str:
    """Load weights of another shape: every rank must say so."""
    parallel = start(ParallelConfig(strategy="zero3"))
    state = {name: tensor[:1] for name, tensor in parallel.full_state().items()}
    return error_of(lambda: parallel.load_full_state(state))


def lost_rank(folder: Path, rank: int) -> None:
    """The last rank fails before its backward pass; each rank writes down how its run ended."""
    parallel = start(ParallelConfig())
    words = ""
    try:
        with naming_the_rank(grace_s=1.0):
            for number in range(3):
                loss = loss_of(parallel, number, my_rows())
                if number == 1 and rank == dist.get_world_size() - 1:
                    raise ValueError("the card is on fire")
                parallel.backward(loss)
                parallel.step()
    except Exception as error:  # noqa: BLE001 - whatever comes is the result
        words = f"{type(error).__name__}: {error}"
    (folder / f"lost-{rank}").write_text(words)


def runs(folder: Path, setting: str) -> dict[str, Any]:
    """Weights of a run of two steps, unbroken and in two parts, with its checkpoints on disk."""
    data = folder / "shards"
    if dist.get_rank() == 0 and not data.exists():
        small_dataset(data)
    for name, num_steps in (("whole", 2), ("parts", 1), ("parts", 2)):
        out = folder / setting / name
        job = None
        if dist.get_rank() == 0:
            config = debug_config(data, out, setting, "global_batch=4", max_steps=num_steps)
            job = prepare(override(config, ["saving.every_steps=1"]), dist.get_world_size())
        RankRun(share(job), CPU).run()
        dist.barrier()
    return {name: tensors(folder / setting / name, 2) for name in ("whole", "parts")}


CHECKS: dict[str, Callable[[], Any]] = {
    "ddp": lambda: train(ParallelConfig(), seed=dist.get_rank()),
    "zero1": lambda: train(ParallelConfig(strategy="zero1"), seed=dist.get_rank()),
    "zero2": lambda: train(ParallelConfig(strategy="zero2"), seed=dist.get_rank()),
    "zero3": lambda: train(ParallelConfig(strategy="zero3"), seed=dist.get_rank()),
    "recomputed": lambda: train(ParallelConfig(strategy="zero3", gradient_checkpointing=True)),
    "bfloat16": lambda: train(ParallelConfig(strategy="zero2", precision="bfloat16")),
    "float16": lambda: train(ParallelConfig(strategy="zero3", precision="float16")),
    "fp16": lambda: train(ParallelConfig(comm_hook="fp16")),
    "zero3 fp16": lambda: train(ParallelConfig(strategy="zero3", comm_hook="fp16")),
    "spread": lambda: {
        name: spread(ParallelConfig(strategy=name)) for name in ("ddp", "zero1", "zero2", "zero3")
    },
    "sent": lambda: {
        name: spread(ParallelConfig(comm_hook=name, powersgd_rank=2, powersgd_start=2))["sent"]
        for name in ("none", "fp16", "powersgd")
    },
    "fit": lambda: fit(ParallelConfig()),
    "fit powersgd": lambda: fit(
        ParallelConfig(comm_hook="powersgd", powersgd_rank=4, powersgd_start=5)
    ),
    "not finite": not_finite,
    "accumulation": lambda: {name: accumulation(name) for name in ("ddp", "zero3")},
    "messages": lambda: {size: messages(size) for size in (1, 25)},
    "overflow": lambda: {name: overflow(name) for name in ("zero1", "zero3")},
    "resume": lambda: {
        "alike": resume(ParallelConfig(strategy="zero3"), ParallelConfig(strategy="zero3")),
        "float16": resume(
            ParallelConfig(strategy="zero1", precision="float16"),
            ParallelConfig(strategy="zero1", precision="float16"),
        ),
        "other": resume(ParallelConfig(strategy="zero1"), ParallelConfig(strategy="zero2")),
    },
    "bf16": lambda: [
        error_of(lambda: start(ParallelConfig(comm_hook="bf16"))),
        error_of(lambda: start(ParallelConfig(comm_hook="bf16", strategy="zero3"))),
    ],
    "another network": another_network,
    "tune": lambda: tune(
        make_network,
        lambda rows: tuple(part[:rows] for part in make_batch(0)[0]),
        ParallelConfig(powersgd_start=2, powersgd_rank=2),
        CPU,
        rows=(1, 2),
        buckets_mb=(1, 25),
        num_steps=1,
    ),
}


def work(rank: int, num_ranks: int, port: int, folder: str, names: tuple[str, ...]) -> None:
    """Join the group, run the named checks (all if none is named), write what they gave."""
    join(rank, num_ranks, port, TIMEOUT_S)
    results = {name: CHECKS[name]() for name in names or tuple(CHECKS)}
    if not names:
        results["runs"] = {
            name: runs(Path(folder), f"parallel.strategy={name}") for name in ("ddp", "zero3")
        }
    torch.save(results, Path(folder) / f"rank-{rank}.pt")  # read by this test run alone
    dist.barrier()
    lost_rank(Path(folder), rank)
    os._exit(0)  # the group is broken by now: no tidy end


def hang(rank: int, port: int, folder: str) -> None:
    """Two ranks, of which the second stops in its first step until the other has ended."""
    join(rank, 2, port, timeout_s=20)
    parallel = start(ParallelConfig())
    ended = Path(folder) / "hung-0"
    if rank == 1:
        while not ended.exists():
            time.sleep(0.1)
        os._exit(0)
    try:
        with naming_the_rank(grace_s=1.0):
            parallel.backward(loss_of(parallel, 0, my_rows()))
        words = ""
    except ClusterError as error:
        words = f"ClusterError: {error}"
    ended.write_text(words)
    os._exit(0)


def join(rank: int, num_ranks: int, port: int, timeout_s: float) -> None:
    """Become a rank of the default group."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=num_ranks,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
