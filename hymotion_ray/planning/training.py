"""Which switches make training fit a pool, how fast it goes and what it costs.

Computed; the training rate is that of the released network's eager steps and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.parallel import ParallelConfig, Strategy
from hymotion_ray.errors import ConfigError
from hymotion_ray.planning.catalogue import Gpu
from hymotion_ray.planning.memory import GIB, Memory
from hymotion_ray.planning.placement import MARGIN
from hymotion_ray.planning.speed import training_seconds
from hymotion_ray.planning.training_memory import training_memory

ROWS = (32, 16, 8, 4, 2, 1)
FRAMES, TOKENS = 360, 36
LORA_RANK = 16


@dataclass(frozen=True, kw_only=True)
class Switches:
    """One way to train."""

    strategy: Strategy
    checkpointing: bool
    lora: bool

    @property
    def config(self) -> ParallelConfig:
        """As the trainer takes them."""
        return ParallelConfig(
            strategy=self.strategy,
            gradient_checkpointing=self.checkpointing,
            precision="bfloat16",
            lora_rank=LORA_RANK if self.lora else 0,
        )

    @property
    def words(self) -> str:
        """As the command's flags name them."""
        parts: list[str] = [self.strategy]
        parts += ["gradient checkpointing"] * self.checkpointing
        parts += ["LoRA"] * self.lora
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class TrainingFit:
    """The largest batch that fits one way of training on one kind of card."""

    gpu: Gpu
    switches: Switches
    rows: int
    memory: Memory
    clips_per_s: float
    """Of one card."""


def ways(num_ranks: int) -> list[Switches]:
    """Ways to train, the simplest and fastest first; splitting needs more than one rank."""
    strategies: list[Strategy] = ["ddp"]
    if num_ranks > 1:
        strategies += ["zero1", "zero2", "zero3"]
    full = [
        Switches(strategy=s, checkpointing=c, lora=False) for c in (False, True) for s in strategies
    ]
    return [*full, Switches(strategy="ddp", checkpointing=True, lora=True)]


def fits(network: NetworkConfig, gpu: Gpu, num_ranks: int) -> list[TrainingFit]:
    """Every way that fits a card of this kind, at the largest batch up to 32 clips of 12 s."""
    found = []
    for switches in ways(num_ranks):
        for rows in ROWS:
            memory = training_memory(
                network,
                switches.config,
                rows=rows,
                num_frames=FRAMES,
                num_tokens=TOKENS,
                num_ranks=num_ranks,
            )
            if memory.total <= MARGIN * gpu.memory_bytes:
                seconds = training_seconds(
                    network,
                    gpu,
                    switches.config,
                    rows=rows,
                    num_frames=FRAMES,
                    num_tokens=TOKENS,
                )
                found.append(
                    TrainingFit(
                        gpu=gpu,
                        switches=switches,
                        rows=rows,
                        memory=memory,
                        clips_per_s=rows / seconds,
                    )
                )
                break
    return found


def choose(network: NetworkConfig, pool: Mapping[str, tuple[Gpu, int]]) -> list[TrainingFit]:
    """For each kind the fastest way that trains all weights, LoRA only where nothing else fits.

    Raises `ConfigError` for a card that holds none.
    """
    num_ranks = sum(number for _, number in pool.values())
    chosen = []
    for gpu, _ in pool.values():
        options = fits(network, gpu, num_ranks)
        if not options:
            least = Switches(strategy="ddp", checkpointing=True, lora=True)
            needed = training_memory(network, least.config, rows=1)
            raise ConfigError(
                f"{gpu.name} has {gpu.usable_gib} GiB, which no way of training fits: LoRA with "
                f"gradient checkpointing takes {needed.total / MARGIN / GIB:.1f} GiB at one clip a "
                "step; allowed: a larger card, or the smaller model (--model lite)"
            )
        chosen.append(max(options, key=lambda o: (not o.switches.lora, o.clips_per_s, o.rows)))
    return chosen


def training_tables(
    chosen: list[TrainingFit], pool: Mapping[str, tuple[Gpu, int]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Memory and placement, in the form of a render plan's."""
    memory = [
        {
            "stage": "train",
            "gpu": fit.gpu.name,
            "gib": fit.memory.in_gib(),
            "card_gib": fit.gpu.usable_gib,
            "planned_gib": round(MARGIN * fit.gpu.memory_bytes / GIB, 1),
        }
        for fit in chosen
    ]
    placement = [
        {
            "stage": "train",
            "gpu": fit.gpu.name,
            "number": pool[fit.gpu.name][1],
            "share": 1.0,
            "rows": fit.rows,
            "switches": fit.switches.words,
            "clips_per_s": round(pool[fit.gpu.name][1] * fit.clips_per_s, 2),
        }
        for fit in chosen
    ]
    return memory, placement


def training_settings(
    chosen: list[TrainingFit], pool: Mapping[str, tuple[Gpu, int]]
) -> dict[str, Any]:
    """The settings of `train` that carry the plan out: those of the card that holds least."""
    least = min(chosen, key=lambda fit: fit.rows)
    config = least.switches.config
    has_bfloat16 = all(fit.gpu.has_bfloat16 for fit in chosen)
    return {
        "parallel.strategy": config.strategy,
        "parallel.gradient_checkpointing": config.gradient_checkpointing,
        "parallel.precision": config.precision if has_bfloat16 else "float16",
        "parallel.lora_rank": config.lora_rank,
        "micro_batch": least.rows,
        "workers.num_workers": str(sum(number for _, number in pool.values())),
    }
