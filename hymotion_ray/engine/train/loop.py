"""The training loop, without Ray: micro-batches in, weights and reports out.

Knows a step (accumulate, average, clip, step, running mean), its schedule, what to do about numbers
that are not finite, and when to stage a checkpoint. Does not know where batches come from, where
files go, or what the switches of `Parallel` do. Every rank runs it alike: what one rank decides by,
all see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.training import OptimizerConfig, TrainConfig
from hymotion_ray.engine import faults
from hymotion_ray.engine.train.bad_steps import BadSteps
from hymotion_ray.engine.train.checkpoints import Restored, Staged
from hymotion_ray.engine.train.lora import merge
from hymotion_ray.engine.train.mfu import train_flops
from hymotion_ray.engine.train.micro_batch import MicroBatch
from hymotion_ray.engine.train.parallel import Parallel
from hymotion_ray.engine.train.passes import make_passes
from hymotion_ray.engine.train.running_mean import RunningMean
from hymotion_ray.engine.train.step_clock import StepClock
from hymotion_ray.engine.train.watch import gather_ranks, per_rank
from hymotion_ray.flow.loss import clip_losses
from hymotion_ray.flow.path import target

Batches = list[MicroBatch]


@dataclass
class Progress:
    """Where a run stands; all of it is in a checkpoint."""

    step: int = 0
    """Optimizer steps done, skipped ones included."""
    position: int = 0
    """Clips of the stream that were used."""
    bad_streak: int = 0
    """Steps in a row, up to now, that were skipped."""
    rollbacks: int = 0
    """Times that the weights went back since the last checkpoint but one."""


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """What the loop tells others, and asks of them."""

    log: Callable[[int, Mapping[str, float]], None]
    """Numbers of the steps since the last report; the same on every rank."""
    stepped: Callable[[int], None]
    """A step is done."""
    say: Callable[[str], None]
    """A line for the user, of this rank."""
    save: Callable[[Staged, float | None], None]
    """Keep a checkpoint, with its loss; called on every rank, and only rank 0's has content."""
    restore: Callable[[], Restored | None]
    """The newest checkpoint, the same on every rank; None where there is none."""


class Training:
    """One rank of a run."""

    def __init__(
        self,
        config: TrainConfig,
        network: NetworkConfig,
        parallel: Parallel,
        callbacks: Callbacks,
        *,
        rank: int,
        world_size: int,
        schedule_steps: int,
    ) -> None:
        """schedule_steps: the total that a cool-down counts back from."""
        self.config, self.network, self.parallel = config, network, parallel
        self.callbacks, self.rank, self.world_size = callbacks, rank, world_size
        self.schedule_steps = schedule_steps
        settings = config.optimizer
        self.optimizer: Optimizer = parallel.make_optimizer(
            settings.learning_rate, (settings.beta1, settings.beta2), settings.weight_decay
        )
        self.mean = RunningMean(parallel.parameters, settings.ema_decay)
        self.progress = Progress()
        self.clock = StepClock(parallel.device)
        # Gradients are averaged over ranks, so each rank's share of the mean over the global batch
        # counts world_size times: right also for ranks of unlike shares.
        self.passes = make_passes(parallel, self.clock, world_size / config.global_batch)
        self._bad = BadSteps(config.failures.max_bad_steps, callbacks.say, rank)
        self._sums = torch.zeros(3, dtype=torch.float64, device=parallel.device)
        self._recent_loss: float | None = None

    def load(self, restored: Restored) -> None:
        """Go on from a checkpoint."""
        self._load_weights(restored)
        run = restored.run
        self.progress = Progress(step=restored.step, **run["progress"])
        self._recent_loss = run["recent_loss"]

    def run(self, feed: Iterator[Batches], validation: Callable[[], Batches] | None) -> None:
        """Train up to `max_steps`; the last step has a checkpoint.

        feed: this rank's micro-batches of the steps from `progress.position` on. validation: its
        share of the clips whose loss is measured at checkpoints. Raises `TrainingError` when
        numbers stay bad.
        """
        while self.progress.step < self.config.max_steps:
            step = self.progress.step + 1
            faults.reach("step", f"rank {self.rank} step {step}")
            with self.clock.waiting():
                batches = next(feed)
            self._step(step, batches)
            self.progress.step = step
            self.progress.position += self.config.global_batch
            is_last = step == self.config.max_steps
            saves = is_last or step % self.config.saving.every_steps == 0
            values: dict[str, float] = {}
            if saves and validation is not None:
                values["val_loss"] = self._validate(validation())
            if saves or step == 1 or step % self.config.log_every == 0:
                self._report(step, values)
            if saves:
                self._save(step, values.get("val_loss", self._recent_loss))
            self.callbacks.stepped(step)

    # --- one step ---------------------------------------------------------------------------------

    def _step(self, step: int, batches: Batches) -> None:
        self.passes.clear()
        moved = [batch.moved(self.parallel.device) for batch in batches]
        losses = [
            self.passes(batch, is_last=number == len(moved))
            for number, batch in enumerate(moved, 1)
        ]
        norm = self.parallel.clip_grad_norm(self.config.optimizer.clip_norm)
        if step == 1 and self.progress.position == 0:
            self._say_first_loss(moved, losses)
        self._update(step, float(norm), moved, losses)
        flops = sum(
            train_flops(self.network, len(b.x), b.x.shape[1], b.context.shape[1]) for b in moved
        )
        self.clock.step(num_clips=sum(len(b.clip_ids) for b in moved), num_flops=flops)

    def _update(self, step: int, norm: float, batches: Batches, losses: Sequence[Tensor]) -> None:
        rate = self.config.optimizer.learning_rate * rate_factor(
            step - 1, self.config.optimizer, self.schedule_steps
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for name in {name for batch in batches for name in batch.bad_ids}:
            self._bad.say_clip(step, name)
        # The norm is the same on every rank and not finite as soon as one number of one rank is.
        if math.isfinite(norm):
            self.parallel.step()
            self.mean.update(step)
            self.progress.bad_streak = 0
            self._count(losses, batches, norm)
            return
        bad = self._bad.clips(batches, losses)
        if not bad and self.config.parallel.precision == "float16":
            self.parallel.step()  # an overflow of the scaled gradient: left out, and scaled anew
            return
        self.progress.bad_streak += 1
        self._bad.say_step(step, bad)
        if self.progress.bad_streak >= self.config.failures.max_bad_steps:
            self._roll_back(step, bad)

    def _roll_back(self, step: int, bad: Sequence[str]) -> None:
        """Weights and optimizer of the newest checkpoint; the data goes on behind the bad steps."""
        restored = None if self.progress.rollbacks else self.callbacks.restore()
        if restored is None:
            raise self._bad.error(step, bad, can_roll_back=self.progress.rollbacks == 0)
        self._say_once(
            f"step {step}: {self.progress.bad_streak} bad steps in a row; the weights go back to"
            f" step {restored.step}, the data goes on"
        )
        self._load_weights(restored)
        self.progress.rollbacks += 1
        self.progress.bad_streak = 0

    def _load_weights(self, restored: Restored) -> None:
        self.parallel.load_full_state(restored.mean)
        self.mean.restart()
        self.parallel.load_full_state(restored.weights)
        self.parallel.load_optimizer_state(restored.optimizer["optimizer"])

    # --- what is told -----------------------------------------------------------------------------

    def _count(self, losses: Sequence[Tensor], batches: Batches, norm: float) -> None:
        self._sums[0] += torch.stack([part.sum() for part in losses]).double().sum()
        self._sums[1] += torch.stack([batch.weight.sum() for batch in batches]).double().sum()
        self._sums[2] += norm

    def _report(self, step: int, more: Mapping[str, float]) -> None:
        """Gather every rank's numbers and tell them, with `more` that all ranks know."""
        loss_sum, clips, norm = self._sums.tolist()
        self._sums.zero_()
        own = {"loss": loss_sum / clips if clips else math.nan, "clips": clips, **self.clock.read()}
        if self.parallel.device.type == "cuda":
            own.setdefault("mfu", math.nan)  # one of unlike GPUs may be of unknown peak
        rows = gather_ranks(own)
        total = sum(row["clips"] for row in rows)
        steps = total / self.config.global_batch
        if total:
            self._recent_loss = (
                sum(row["loss"] * row["clips"] for row in rows if row["clips"]) / total
            )
        values = {
            **more,
            "loss": self._recent_loss if total and self._recent_loss is not None else math.nan,
            "grad_norm": norm / steps if steps else math.nan,
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "epoch_clips": float(self.progress.position),
            "clips_per_s": sum(row["clips_per_s"] for row in rows),
            "data_wait_percent": max(row["data_wait_percent"] for row in rows),
            "memory_gib": max(row["memory_gib"] for row in rows),
        }
        if all("mfu" in row for row in rows):
            values["mfu"] = sum(row["mfu"] for row in rows) / len(rows)
        values |= per_rank(rows, ["loss", "step_s", "own_s", "memory_gib"])
        self.callbacks.log(step, values)

    def _say_first_loss(self, batches: Batches, losses: Sequence[Tensor]) -> None:
        """Loss of the weights as they were given, beside that of predicting nothing."""
        sums = {"loss": 0.0, "nothing": 0.0, "clips": 0.0}
        for batch, part in zip(batches, losses, strict=True):
            goal = target(batch.noise, batch.x)
            unmoved = clip_losses(torch.zeros_like(goal), goal, batch.length) * batch.weight
            sums["loss"] += float(part.sum())
            sums["nothing"] += float(unmoved.sum())
            sums["clips"] += float(batch.weight.sum())
        rows = gather_ranks(sums)
        clips = sum(row["clips"] for row in rows) or math.nan
        mean, nothing = (sum(row[n] for row in rows) / clips for n in ("loss", "nothing"))
        self._say_once(f"step 0: loss {mean:.4f} ({nothing:.4f} for predicting nothing)")
        if self.config.init is not None and mean > 0.9 * nothing:
            self._say_once(
                f"warning: the weights of {self.config.init} are no better than predicting nothing"
                " on this data: its statistics, skeleton or text encoder may be another's"
            )

    def _say_once(self, text: str) -> None:
        """Say what every rank knows, on one of them."""
        if self.rank == 0:
            self.callbacks.say(text)

    # --- checkpoints ------------------------------------------------------------------------------

    def _save(self, step: int, score: float | None) -> None:
        """Stage a checkpoint on rank 0 and hand it over. All ranks take part."""
        faults.reach("save", f"rank {self.rank} step {step}")
        with self.mean.in_place():
            mean = self.parallel.full_state()
        if self.progress.bad_streak == 0:
            self.progress.rollbacks = 0
        progress = asdict(self.progress)
        del progress["step"]
        run: dict[str, Any] = {"progress": progress, "recent_loss": self._recent_loss}
        staged = Staged(
            step=step,
            weights=self.parallel.full_state(),
            mean=mean,
            optimizer={
                "optimizer": self.parallel.optimizer_state(),
                "rng": torch.get_rng_state(),
            },
            run=run,
            merged=merge(mean, self.config.parallel) if self.config.parallel.lora_rank else None,
        )
        self.callbacks.save(staged, score)

    @torch.no_grad()
    def _validate(self, batches: Batches) -> float:
        """Loss of the running mean over the validation clips of all ranks."""
        total = clips = 0.0
        with self.mean.in_place():
            for batch in batches:
                batch = batch.moved(self.parallel.device)
                losses = self.parallel.module(*batch.inputs) * batch.weight
                total += float(losses.sum())
                clips += float(batch.weight.sum())
        rows = gather_ranks({"loss": total, "clips": clips})
        return sum(row["loss"] for row in rows) / max(1.0, sum(row["clips"] for row in rows))


def rate_factor(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """Share of the learning rate at a step counted from 0: warm-up, constant, cool-down if any."""
    factor = min(1.0, (step + 1) / config.warmup_steps)
    if config.cooldown_steps:
        factor *= min(1.0, max(0.0, (total_steps - step) / config.cooldown_steps))
    return factor
