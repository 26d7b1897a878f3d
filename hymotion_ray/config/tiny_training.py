"""How the built-in model was trained, from DeepMimic's own files. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hymotion_ray.config.fields import require


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of one training run of `pipelines/train_tiny.py`."""

    max_steps: int
    """Optimizer steps."""
    frames_per_batch: int = 4096
    """Motion frames a step: a step of longer clips has fewer of them."""
    frame_buckets: tuple[int, ...] = (96, 184, 360)
    """Padded clip lengths; each step draws one, and its clips are from half of it to all of it."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    warmup_steps: int = 500
    """Steps over which the learning rate rises from zero."""
    cooldown_steps: int = 0
    """Last steps, over which it falls to zero. Above 0 the schedule needs the total length, so such
    a run cannot be made longer afterwards."""
    clip_norm: float = 1.0
    """Largest norm of the gradient."""
    ema_decay: float = 0.999
    """Decay of the running mean of the weights, which is what is kept."""
    text_noise: float = 0.0
    """Noise added to text features, as a share of their size, so that near words act alike."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the network; weights and optimizer stay float32."""
    cuda_graphs: bool = False
    """Whether to replay each frame bucket's pass from a CUDA graph: a GPU only, faster steps."""
    seed: int = 0
    """Seed of the initial weights and of everything drawn."""
    log_every: int = 100
    """Steps between two reports."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "frames_per_batch", "warmup_steps", "log_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(
            len(self.frame_buckets) > 0 and min(self.frame_buckets) >= 20,
            "frame_buckets",
            self.frame_buckets,
            "lengths of 20 frames and more",
        )
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "above 0")
        require(self.clip_norm > 0, "clip_norm", self.clip_norm, "above 0")
        require(0 <= self.ema_decay < 1, "ema_decay", self.ema_decay, "from 0 to below 1")
        require(0 <= self.text_noise < 10, "text_noise", self.text_noise, "from 0 to below 10")
        require(
            0 <= self.cooldown_steps <= self.max_steps,
            "cooldown_steps",
            self.cooldown_steps,
            f"0 to max_steps = {self.max_steps}",
        )


def tiny_training(max_steps: int, device: str) -> TrainingConfig:
    """How the built-in model was trained; on a CPU with smaller batches."""
    on_gpu = device.startswith("cuda")
    return TrainingConfig(
        max_steps=max_steps,
        frames_per_batch=11_520 if on_gpu else 2_880,
        warmup_steps=min(500, max(1, max_steps // 10)),
        cooldown_steps=max_steps // 3,
        text_noise=0.3,
        precision="bfloat16" if on_gpu else "float32",
        cuda_graphs=on_gpu,
    )
