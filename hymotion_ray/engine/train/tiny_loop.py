"""The loop that made the built-in model: one device that holds all tracks, no shards, no Ray.

Knows `Batches` and the schedule. Does not know where tracks come from or where weights go. Training
from shards is `loop.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hymotion_ray.config.model import ModelConfig
from hymotion_ray.config.tiny_training import TrainingConfig
from hymotion_ray.engine.train.batches import CONSTANT_STD, Batches
from hymotion_ray.engine.train.objective import FlowModel
from hymotion_ray.engine.train.step import make_step
from hymotion_ray.model.init import initialise


@dataclass(frozen=True)
class Report:
    """Mean loss and gradient norm since the last report, at a step (the first is 1)."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float


def train(
    model_config: ModelConfig,
    config: TrainingConfig,
    batches: Batches,
    on_report: Callable[[Report], None] | None = None,
) -> FlowModel:
    """Train from new weights and return the model that holds the running mean of them."""
    torch.manual_seed(config.seed)
    model = FlowModel(model_config, batches.std >= CONSTANT_STD)
    initialise(model.network, config.seed)
    model.to(batches.device)
    mean_model = copy.deepcopy(model).requires_grad_(False)
    run = make_step(model, batches.device, config)
    optimizer = torch.optim.AdamW(
        _parameter_groups(model, config.weight_decay),
        lr=config.learning_rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, config))
    buckets = _buckets(config)
    total_loss = torch.zeros((), device=batches.device)
    total_norm = torch.zeros((), device=batches.device)
    since = 0
    for step in range(1, config.max_steps + 1):
        num_frames = next(buckets)
        num_rows = max(1, config.frames_per_batch // num_frames)
        batch = batches.draw(num_rows, num_frames, config.text_noise)
        noise, t = batches.normal(*batch.x.shape), batches.uniform(num_rows)
        drop = batches.uniform(num_rows) < model_config.cond_mask_prob
        total_loss += run(*batch, noise, t, drop)
        total_norm += nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        schedule.step()
        _update_mean(mean_model, model, mean_decay(step, config.ema_decay))
        since += 1
        if on_report and (step % config.log_every == 0 or step == config.max_steps):
            rate = float(schedule.get_last_lr()[0])
            on_report(Report(step, float(total_loss) / since, float(total_norm) / since, rate))
            total_loss.zero_()
            total_norm.zero_()
            since = 0
    return mean_model


def rate_factor(step: int, config: TrainingConfig) -> float:
    """Share of the peak learning rate at a step counted from 0: warm-up, constant, cool-down."""
    factor = min(1.0, (step + 1) / config.warmup_steps)
    if config.cooldown_steps:
        factor *= min(1.0, max(0.0, (config.max_steps - step) / config.cooldown_steps))
    return factor


def mean_decay(step: int, limit: float) -> float:
    """Decay of the running mean at a step: short at first, so that the start is soon forgotten."""
    return min(limit, (1 + step) / (10 + step))


def _buckets(config: TrainingConfig) -> Iterator[int]:
    """Clip lengths of the steps, drawn on the CPU so that no step waits for the device."""
    generator = torch.Generator().manual_seed(config.seed)
    while True:
        for pick in torch.randint(len(config.frame_buckets), (256,), generator=generator).tolist():
            yield config.frame_buckets[pick]


def _parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay, vectors (biases, norm weights, null features) do not."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


@torch.no_grad()
def _update_mean(mean_model: nn.Module, model: nn.Module, decay: float) -> None:
    means: list[Tensor] = list(mean_model.parameters())
    values: list[Tensor] = list(model.parameters())
    torch._foreach_lerp_(means, values, 1.0 - decay)
