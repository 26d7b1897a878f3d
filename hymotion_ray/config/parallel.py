"""How training spreads over processes and saves memory: the switches, and which go together.

Knows no tensors. `engine/train/parallel.py` maps each switch to torch; docs/training-switches.md
says what each is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hymotion_ray.config.fields import require
from hymotion_ray.errors import ConfigError

Strategy = Literal["ddp", "zero1", "zero2", "zero3"]
CommHook = Literal["none", "fp16", "bf16", "powersgd"]
TrainPrecision = Literal["float32", "bfloat16", "float16"]
CompileBackend = Literal["inductor", "eager"]
TrainAttention = Literal["auto", "band", "dense"]
SHARDED: tuple[Strategy, ...] = ("zero2", "zero3")
"""Strategies that keep only a part of weights and gradients on each rank."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Switches of a training run. With one process and the defaults, training is plain torch."""

    strategy: Strategy = "ddp"
    """What each rank holds a part of: ddp nothing, zero1 optimizer state, zero2 gradients and
    weights at rest too, zero3 weights during the pass as well."""
    bucket_mb: int = 25
    """Megabytes of gradients sent in one message by ddp and zero1; zero2 and zero3 send by block.
    """
    comm_hook: CommHook = "none"
    """How gradients are made smaller on the wire; bf16 needs NCCL, powersgd is lossy."""
    powersgd_rank: int = 4
    """Rank of PowerSGD's approximation of a gradient matrix."""
    powersgd_start: int = 10
    """Steps of plain averaging before PowerSGD begins."""
    gradient_checkpointing: bool = False
    """Whether blocks are computed again in the backward pass instead of kept."""
    precision: TrainPrecision = "float32"
    """Arithmetic of matrix products; weights, sums and optimizer stay float32."""
    loss_scale: float = 65536.0
    """First scale of the loss in float16; it halves after an overflow and grows back."""
    compile: bool = False
    """Whether blocks are compiled."""
    compile_backend: CompileBackend = "inductor"
    """inductor needs a C++ compiler on CPU and Triton on a GPU; eager only traces, for tests."""
    cuda_graphs: bool = False
    """Whether a pass is replayed from a CUDA graph, one for each shape of batches: on one GPU."""
    attention: TrainAttention = "auto"
    """How motion attends: band computes only what is near, with Triton kernels; dense computes
    everything under a mask; auto: band on CUDA, dense else."""
    lora_rank: int = 0
    """Rank of low-rank adapters beside frozen weights; 0 trains the weights themselves."""
    lora_alpha: int = 16
    """The adapters' product counts lora_alpha / lora_rank."""
    trainable: tuple[str, ...] = ("*",)
    """Patterns (`*`, `?`) of parameter names that are trained; the others stay as they are."""

    def __post_init__(self) -> None:
        for name, words in (
            ("strategy", Strategy),
            ("comm_hook", CommHook),
            ("precision", TrainPrecision),
            ("compile_backend", CompileBackend),
            ("attention", TrainAttention),
        ):
            value = getattr(self, name)
            require(value in get_args(words), name, value, " | ".join(get_args(words)))
        require(1 <= self.bucket_mb <= 10_000, "bucket_mb", self.bucket_mb, "1 to 10000 megabytes")
        require(1 <= self.powersgd_rank <= 1024, "powersgd_rank", self.powersgd_rank, "1 to 1024")
        require(
            2 <= self.powersgd_start <= 10**9,
            "powersgd_start",
            self.powersgd_start,
            "2 or more: PowerSGD's error feedback starts after a plain step",
        )
        require(1 <= self.loss_scale <= 2**24, "loss_scale", self.loss_scale, "1 to 2^24")
        require(0 <= self.lora_rank <= 1024, "lora_rank", self.lora_rank, "0 to 1024")
        require(1 <= self.lora_alpha <= 10**6, "lora_alpha", self.lora_alpha, "1 to 1000000")
        require(len(self.trainable) > 0, "trainable", self.trainable, "at least one pattern")
        if self.cuda_graphs and self.precision == "float16":
            raise ConfigError(
                "cuda_graphs is on with precision 'float16'; allowed: float32 or bfloat16: a graph "
                "cannot leave out a step whose loss scale overflowed"
            )
        if self.comm_hook == "powersgd" and self.strategy in SHARDED:
            raise ConfigError(
                f"comm_hook is 'powersgd' with strategy {self.strategy!r}; allowed: powersgd with "
                "ddp or zero1, whose gradients are averaged whole; take fp16 or bf16 here"
            )
        if self.comm_hook == "powersgd" and self.precision == "float16":
            raise ConfigError(
                "comm_hook is 'powersgd' with precision 'float16'; allowed: float32 or bfloat16: "
                "one overflow would stay in PowerSGD's error feedback for ever"
            )
