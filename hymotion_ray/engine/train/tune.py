"""Measures communication hooks x bucket sizes x rows on the ranks at hand, and picks. Ray-free.

Every rank of the process group calls `tune` at the same time; all get the same answer. Knows steps
and clocks. Does not know data: the caller gives a network and inputs of the usual shape.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hymotion_ray.config.parallel import SHARDED, CommHook, ParallelConfig
from hymotion_ray.engine.train.comm_bytes import expected_bytes, is_counted, written_bytes
from hymotion_ray.engine.train.held_bytes import saved_bytes
from hymotion_ray.engine.train.lora import num_trained
from hymotion_ray.engine.train.parallel import Parallel, parallelise
from hymotion_ray.errors import ConfigError

BUCKETS_MB = (5, 25, 100)
ROUNDING_GAIN = 1.05
"""fp16 and bf16 round gradients: they are picked only if they are faster by this factor."""
Build = Callable[[], nn.Module]
MakeInputs = Callable[[int], tuple[Tensor, ...]]


class Trial(NamedTuple):
    """One combination, as the slowest rank saw it."""

    comm_hook: CommHook
    bucket_mb: int
    rows: int
    """Clips of one pass of one rank."""
    step_s: float
    """Median seconds of a step of one pass; infinite where memory ran out."""
    clips_per_s: float
    """Over all ranks."""
    sent_bytes: int
    """That a rank sends in a step."""
    memory_bytes: int
    """Most that a rank's tensors take; on a CPU weights, gradients, state and what a pass keeps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """All trials, and the one to take."""

    trials: tuple[Trial, ...]
    pick: Trial
    num_ranks: int
    is_counted: bool
    """Whether sent bytes were counted, and not computed."""

    def settings(self) -> list[str]:
        """The pick, as `--set` takes it."""
        return [
            f"parallel.comm_hook={self.pick.comm_hook}",
            f"parallel.bucket_mb={self.pick.bucket_mb}",
            f"micro_batch={self.pick.rows}",
        ]

    def to_mapping(self) -> dict[str, Any]:
        """All of it as one JSON document; the time of a trial that ran out of memory is null."""

        def plain(trial: Trial) -> dict[str, Any]:
            return trial._asdict() | ({} if trial.clips_per_s else {"step_s": None})

        return {
            "trials": [plain(trial) for trial in self.trials],
            "pick": plain(self.pick),
            "settings": self.settings(),
            "num_ranks": self.num_ranks,
            "bytes": "counted" if self.is_counted else "computed",
        }

    def table(self) -> str:
        """The trials as lines of text, the pick marked."""
        how = "counted" if self.is_counted else "computed"
        lines = [
            f"{self.num_ranks} ranks; bytes sent are {how}",
            f"{'hook':9} {'bucket MB':>9} {'rows':>5} {'step ms':>9} {'clips/s':>9} "
            f"{'sent MB':>9} {'memory MB':>10}",
        ]
        for trial in self.trials:
            mark = "  <- pick" if trial == self.pick else ""
            took = "no memory" if trial.clips_per_s == 0 else f"{1000 * trial.step_s:.1f}"
            lines.append(
                f"{trial.comm_hook:9} {trial.bucket_mb:9} {trial.rows:5} {took:>9} "
                f"{trial.clips_per_s:9.1f} {trial.sent_bytes / 1e6:9.2f} "
                f"{trial.memory_bytes / 1e6:10.1f}{mark}"
            )
        lines.append("take it with: " + " ".join(f"--set {s}" for s in self.settings()))
        return "\n".join(lines)


def tune(
    build: Build,
    make_inputs: MakeInputs,
    config: ParallelConfig,
    device: torch.device,
    *,
    rows: Sequence[int],
    hooks: Sequence[CommHook] = (),
    buckets_mb: Sequence[int] = BUCKETS_MB,
    num_steps: int = 5,
) -> Tuning:
    """Time `num_steps` steps of every combination, all other switches as in `config`.

    build: makes the network, alike at every call. make_inputs(rows): its inputs on any device, the
    same shape on every rank; the loss is the mean of the output. hooks: none given, all that the
    group's backend and `config` allow. PowerSGD is measured but never picked, since it changes
    what is learned. Raises `ConfigError` where no combination fits in memory.
    """
    trials: list[Trial] = []
    for hook, bucket_mb in _combinations(config, hooks, buckets_mb):
        tried = dataclasses.replace(config, comm_hook=hook, bucket_mb=bucket_mb)
        parallel = parallelise(build(), tried, device)
        parallel.make_optimizer(1e-6, (0.9, 0.98), 0.0)
        for num_rows in sorted(rows):
            inputs = tuple(part.to(device) for part in make_inputs(num_rows))
            trials.append(_trial(parallel, inputs, num_rows, num_steps))
            if trials[-1].clips_per_s == 0:
                break
        del parallel
    return Tuning(
        trials=tuple(trials),
        pick=choose(trials),
        num_ranks=_num_ranks(),
        is_counted=is_counted(),
    )


def choose(trials: Sequence[Trial]) -> Trial:
    """The fastest combination that gives exact gradients, or a rounded one if well faster."""
    exact = [t for t in trials if t.comm_hook == "none" and t.clips_per_s > 0]
    rounded = [t for t in trials if t.comm_hook in ("fp16", "bf16") and t.clips_per_s > 0]
    best = max(exact, key=lambda t: t.clips_per_s, default=None)
    other = max(rounded, key=lambda t: t.clips_per_s, default=None)
    if best is None and other is None:
        raise ConfigError(
            "no combination fits in memory; allowed: fewer rows, gradient_checkpointing, a zero "
            "strategy or lora_rank"
        )
    if best is None or (other and other.clips_per_s > ROUNDING_GAIN * best.clips_per_s):
        assert other is not None
        return other
    return best


def _combinations(
    config: ParallelConfig, hooks: Sequence[CommHook], buckets_mb: Sequence[int]
) -> list[tuple[CommHook, int]]:
    if _num_ranks() == 1:
        return [("none", config.bucket_mb)]
    if not hooks:
        hooks = ["none", "fp16"]
        if "nccl" in dist.get_backend():
            hooks.append("bf16")
        if config.strategy not in SHARDED and config.precision != "float16":
            hooks.append("powersgd")
    if config.strategy in SHARDED:  # sent by block, whatever the bucket
        buckets_mb = [config.bucket_mb]
    return list(itertools.product(hooks, buckets_mb))


def _trial(parallel: Parallel, inputs: tuple[Tensor, ...], rows: int, num_steps: int) -> Trial:
    config, device, num_ranks = parallel.config, parallel.device, _num_ranks()
    if not _fits(parallel, inputs):
        return Trial(config.comm_hook, config.bucket_mb, rows, float("inf"), 0.0, 0, 0)
    # PowerSGD's first steps are plain ones.
    num_plain = config.powersgd_start + 1 if config.comm_hook == "powersgd" else 1
    for _ in range(num_plain):
        _step(parallel, inputs)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, before = [], written_bytes()
    for _ in range(num_steps):
        _settle(device)
        start = time.perf_counter()
        _step(parallel, inputs)
        _settle(device)
        seconds.append(time.perf_counter() - start)
    after = written_bytes()
    if is_counted() and before is not None and after is not None:
        sent = (after - before) // num_steps
    else:
        sent = expected_bytes(config, *num_trained(parallel.module), num_ranks)
    if device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(device)
    else:
        kept = saved_bytes(lambda: parallel.module(*inputs), parallel.module)
        memory = sum(parallel.held()) + kept
    step_s, most_sent, most_memory = _most(median(seconds), sent, memory, device=device)
    return Trial(
        config.comm_hook,
        config.bucket_mb,
        rows,
        step_s,
        num_ranks * rows / step_s,
        round(most_sent),
        round(most_memory),
    )


def _fits(parallel: Parallel, inputs: tuple[Tensor, ...]) -> bool:
    """Whether a pass fits in the memory of all ranks; tried without a message where it can be."""
    out = 0.0
    try:
        with parallel.no_sync():
            parallel.backward(parallel.module(*inputs).float().mean())
    except torch.cuda.OutOfMemoryError:
        out = 1.0
    if out:
        torch.cuda.empty_cache()
    return _most(out, device=parallel.device)[0] == 0


def _step(parallel: Parallel, inputs: tuple[Tensor, ...]) -> None:
    for parameter in parallel.parameters.values():
        parameter.grad = None
    parallel.backward(parallel.module(*inputs).float().mean())
    parallel.clip_grad_norm(1.0)
    parallel.step()


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _most(*values: float, device: torch.device) -> list[float]:
    """Each number's largest value over the ranks."""
    table = torch.tensor(values, dtype=torch.float64, device=device)
    if _num_ranks() > 1:
        dist.all_reduce(table, dist.ReduceOp.MAX)
    found: list[float] = table.tolist()
    return found


def _num_ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
