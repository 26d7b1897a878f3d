"""What a training run expects of itself before it begins: pace, memory and price. Reckoned.

Knows shapes, cards and settings; no tensors and no processes.
"""

from __future__ import annotations

from collections.abc import Sequence

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.training import TrainConfig
from hymotion_ray.engine.cards import Card
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.plan_check import usd_per_hour
from hymotion_ray.planning.carried import Expected
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.flops import motion_flops, text_flops
from hymotion_ray.planning.memory import GIB
from hymotion_ray.planning.speed import training_seconds
from hymotion_ray.planning.training_memory import training_memory

_TOKENS = 36
_PROCESS_BYTES = GIB // 2
"""Of a process on CPU with torch, its libraries and its buffers."""
_START_S = 20.0
"""Workers, captions, the first validation and the last checkpoint: measured with `tiny` and 48
clips on 2 CPU cores, 25 s of which 4.5 were steps."""
_CAPTURE_S, _COMPILE_S = 32.0, 57.0
"""More of it where passes are captured (the run of `tiny` on an H200: 317 s, 265 of them steps),
and where blocks are compiled first (`h200-2026-12-01-train.json`, `first_step_s`)."""
_RECOMPUTED = 4 / 3
"""On CPU: a second forward pass beside the forward and the twice as dear backward pass."""
_READ_CLIPS_S = 240.0
"""Clips a second of one reading process: 2,900 of 12, waited for, in the run of `tiny` on an H200
that the benchmarks' README tells of."""


def expected_training(
    config: TrainConfig,
    network: NetworkConfig,
    cluster: ClusterInfo,
    cards: Sequence[Card],
    *,
    uses_gpus: bool,
) -> Expected | None:
    """Of `config` on this cluster; None where a card is of no kind that the catalogue knows.

    Clips count as long as the mean of the frame buckets, prompts as long as a usual one. Steps
    alone are reckoned, with their kernels' start and what reading processes deliver; validations
    and checkpoints on the way are not, nor readers that share a CPU's cores with the steps.
    """
    buckets = config.input.frame_buckets
    num_frames = round(sum(buckets) / len(buckets))
    num_workers = config.workers.max_workers
    slower = _RECOMPUTED if config.parallel.gradient_checkpointing else 1.0
    memory = training_memory(
        network,
        config.parallel,
        rows=config.micro_batch,
        num_frames=max(buckets),
        num_tokens=_TOKENS,
        num_ranks=num_workers,
    )
    start_s = _START_S
    if config.parallel.compile:
        start_s += _COMPILE_S
    elif config.parallel.cuda_graphs:
        start_s += _CAPTURE_S
    own = memory.total - memory.context
    if not uses_gpus:
        forward = motion_flops(network, 1, num_frames, _TOKENS) + text_flops(network, 1, _TOKENS)
        cores = min(num_workers * config.workers.cpu_threads, max(1.0, cluster.num_cpus))
        rate = cores * fitted().speed.cpu_core_flops / (3 * forward)
        return Expected(
            source="made by this run, for CPUs",
            clips_per_s=rate / slower,
            start_s=start_s,
            memory_gib=(own - memory.workspace + _PROCESS_BYTES) / GIB,
        )
    catalogue = load_catalogue()
    kinds = [catalogue.kind_of(card.name, card.num_bytes) for card in cards]
    known = [kind for kind in kinds if kind is not None][:num_workers]
    if len(known) < min(num_workers, max(1, len(cards))):
        return None
    # Equal shares: the slowest card sets the pace of a step.
    slowest = max(
        training_seconds(
            network,
            gpu,
            config.parallel,
            rows=config.micro_batch,
            num_frames=num_frames,
            num_tokens=_TOKENS,
        )
        for gpu in known
    )
    rate = config.micro_batch / slowest
    if config.input.reader == "processes":
        rate = min(rate, _READ_CLIPS_S * config.input.readers)
    return Expected(
        source="made by this run",
        clips_per_s=num_workers * rate,
        start_s=start_s,
        memory_gib=own / GIB,
        usd_per_hour=usd_per_hour(cards, catalogue, {}),
    )
