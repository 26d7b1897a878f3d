"""How fast a kind of GPU samples, encodes and trains: a model of two terms, fitted on one H200.

A batch takes the time of its matrix products at the card's product rate, plus that of everything
else, which moves memory and so goes by bandwidth; but never less than its kernels take to start.
The constants are fitted on one H200 (`fitted.py`) and come from `text_encoder_h200.jsonl`; other
kinds are computed from data-sheet ratios, not measured.
"""

from __future__ import annotations

from hymotion_ray.config.grid import GPU_TEXT_ROWS
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.planning.catalogue import Gpu
from hymotion_ray.planning.fitted import Speed, fitted
from hymotion_ray.planning.flops import motion_flops, text_flops
from hymotion_ray.planning.memory import Precision

_PRODUCT_SHARE = 785 / 989
"""Of the data sheet's peak, what an 8192^3 bf16 product reached."""
_FLOAT8_TIME = 0.732
"""Of the motion half's time, what it takes with its products in float8: 16.78 clips/s against 12.63
in bf16 (`h200-2026-12-01-approximate.json`), the text half's time as it was."""
_ENCODER_FLOPS = 2 * 6.95e9 * 40
"""Of one prompt: 6.95 B weights of Qwen3-8B's blocks, 40 tokens after the shared prefix."""
_ENCODER_SHARE = 418 * _ENCODER_FLOPS / 785e12
"""Of the product rate, at 16 rows a call."""


def product_rate(gpu: Gpu) -> float:
    """Matrix operations a second that large products reach."""
    return gpu.tflops_16bit * 1e12 * _PRODUCT_SHARE


def clip_flops(
    config: NetworkConfig,
    *,
    num_frames: int,
    num_tokens: int,
    seeds: int,
    evaluations: int,
    null_evaluations: int | None = None,
) -> float:
    """Operations of one clip: its motion rows of all evaluations, its share of a text row.

    `null_evaluations` are of the null branch; None: as many as `evaluations`.
    """
    null = evaluations if null_evaluations is None else null_evaluations
    motion = (evaluations + null) * motion_flops(config, 1, num_frames, num_tokens)
    return motion + evaluations * text_flops(config, 1, num_tokens) / seeds


def sampling_seconds(
    config: NetworkConfig,
    gpu: Gpu,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
    seeds: int = 1,
    evaluations: int = 50,
    null_evaluations: int | None = None,
    precision: Precision = "bfloat16",
    float8: bool = False,
    constants: Speed | None = None,
    text_rows: int = GPU_TEXT_ROWS,
) -> float:
    """Seconds of `rows` clips computed at once on a card of their own.

    `evaluations` of the text branch a clip; `null_evaluations` of the null branch in calls of their
    own (None: as many, each in one call with the text's; `planning.evaluations` counts both);
    `float8`: with the products of the motion half in it; `constants` (None: the fitted ones);
    `text_rows` are computed a call of the text half.
    """
    fit = constants or fitted().speed
    null = evaluations if null_evaluations is None else null_evaluations
    starts = evaluations + (null_evaluations or 0)
    motion = (evaluations + null) * motion_flops(config, rows, num_frames, num_tokens)
    # A text call always computes all its rows, the last one of a group's among them.
    calls = -(-evaluations * -(-rows // seeds) // text_rows)
    text = calls * text_flops(config, text_rows, num_tokens)
    slower = fit.float32_factor if precision == "float32" else 1.0
    a_flop = slower * (1 / product_rate(gpu) + fit.bytes_a_flop / (gpu.bandwidth_gb_s * 1e9))
    return (
        rows * fit.clip_s
        + max(a_flop * motion * (_FLOAT8_TIME if float8 else 1.0), starts * fit.launch_s)
        + max(a_flop * fit.text_factor * text, calls * fit.text_launch_s)
    )


def sampling_rate(
    config: NetworkConfig,
    gpu: Gpu,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
    seeds: int = 1,
    evaluations: int = 50,
    null_evaluations: int | None = None,
    precision: Precision = "bfloat16",
    float8: bool = False,
) -> float:
    """Clips a second of one sampler that has the card to itself; as `sampling_seconds`."""
    return rows / sampling_seconds(
        config,
        gpu,
        rows=rows,
        num_frames=num_frames,
        num_tokens=num_tokens,
        seeds=seeds,
        evaluations=evaluations,
        null_evaluations=null_evaluations,
        precision=precision,
        float8=float8,
    )


def encoding_rate(gpu: Gpu) -> float:
    """Prompts a second through Qwen3-8B in bf16, at 16 a call."""
    return product_rate(gpu) * _ENCODER_SHARE / _ENCODER_FLOPS


def training_seconds(
    config: NetworkConfig,
    gpu: Gpu,
    switches: ParallelConfig,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
    constants: Speed | None = None,
) -> float:
    """Seconds of a training pass of `rows` clips on one card: forward, and twice that backward.

    Products are counted in full; small ones wait for their kernels' start, which is the host's and
    the same whatever the card. `constants` None: the fitted ones.
    """
    fit = constants or fitted().speed
    forward = motion_flops(config, rows, num_frames, num_tokens)
    forward += text_flops(config, rows, num_tokens)
    share = fit.training_share_compiled if switches.compile else fit.training_share
    start = fit.training_launch_graphed_s if switches.cuda_graphs else fit.training_launch_s
    again = fit.training_recomputed if switches.gradient_checkpointing else 1.0
    return again * max(3 * forward / (product_rate(gpu) * share), start * config.num_layers)
