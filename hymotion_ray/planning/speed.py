"""How fast a kind of GPU samples, encodes and trains: a model of two terms, fitted on one H200.

A batch takes the time of its matrix products at the card's product rate, plus that of everything
else, which moves memory and so goes by bandwidth; but never less than its kernels take to start.
The constants come from `benchmarks/results/h200-2026-11-30.json` and `text_encoder_h200.jsonl`;
other kinds are computed from data-sheet ratios, not measured.
"""

from __future__ import annotations

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.planning.catalogue import Gpu
from hymotion_ray.planning.flops import motion_flops, text_flops

_PRODUCT_SHARE = 785 / 989
"""Of the data sheet's peak, what an 8192^3 bf16 product reached."""
_BYTES_A_FLOP = 4.8e12 / 785e12 * (1 / 0.245 - 1)
"""Memory traffic of all that is no product: sampling reached 0.23 to 0.25 of the product rate at
4.8 TB/s."""
_LAUNCH_S = 1.32 / 50
"""A step of one clip, which is too small to fill the card."""
_ENCODER_FLOPS = 2 * 6.95e9 * 40
"""Of one prompt: 6.95 B weights of Qwen3-8B's blocks, 40 tokens after the shared prefix."""
_ENCODER_SHARE = 418 * _ENCODER_FLOPS / 785e12
"""Of the product rate, at 16 rows a call."""
_TRAINING_SHARE = 0.205
"""Of the product rate, eager bf16: the released network's measured 19 to 22 %; ours is not
measured yet."""


def product_rate(gpu: Gpu) -> float:
    """Matrix operations a second that large products reach."""
    return gpu.tflops_16bit * 1e12 * _PRODUCT_SHARE


def clip_flops(
    config: NetworkConfig, *, num_frames: int, num_tokens: int, seeds: int, evaluations: int
) -> float:
    """Operations of one clip: two motion rows an evaluation, its share of a text row."""
    motion = 2 * motion_flops(config, 1, num_frames, num_tokens)
    return evaluations * (motion + text_flops(config, 1, num_tokens) / seeds)


def sampling_rate(
    config: NetworkConfig,
    gpu: Gpu,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
    seeds: int = 1,
    evaluations: int = 50,
) -> float:
    """Clips a second of one sampler that has the card to itself; `evaluations` of the network."""
    flops = rows * clip_flops(
        config,
        num_frames=num_frames,
        num_tokens=num_tokens,
        seeds=seeds,
        evaluations=evaluations,
    )
    work = flops / product_rate(gpu) + flops * _BYTES_A_FLOP / (gpu.bandwidth_gb_s * 1e9)
    return rows / max(work, evaluations * _LAUNCH_S)


def encoding_rate(gpu: Gpu) -> float:
    """Prompts a second through Qwen3-8B in bf16, at 16 a call."""
    return product_rate(gpu) * _ENCODER_SHARE / _ENCODER_FLOPS


def training_rate(config: NetworkConfig, gpu: Gpu, *, num_frames: int, num_tokens: int) -> float:
    """Clips a second of one card: forward and twice that backward, products counted in full."""
    forward = motion_flops(config, 1, num_frames, num_tokens) + text_flops(config, 1, num_tokens)
    return product_rate(gpu) * _TRAINING_SHARE / (3 * forward)
