"""GPU memory of one process, by what it is for. Knows shapes, no tensors and no prices.

Every figure is computed from shapes; the few constants that stand for what allocators and kernels
take are named below with where they come from. All sizes are bytes.

Letters: B motion rows (clips, times two under guidance), L frames, N text tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from hymotion_ray.config.fields import require
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.planning.parameters import count_parameters

GIB = 2**30
Precision = Literal["float32", "bfloat16", "float16"]
EncoderPrecision = Literal["bfloat16", "int8", "4bit"]
Strategy = Literal["ddp", "zero1", "zero2", "zero3"]

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CONTEXT_BYTES = int(0.55 * GIB)
"""What CUDA itself takes of a card for a process: a usual figure, not measured here."""
_WORKSPACE_BYTES = int(0.1 * GIB)
"""Scratch of matrix products."""
_MOTION_WIDTHS = 16
"""Widths D alive at once in a motion block, at its fullest: the residual, the modulated input, the
7 D of queries, keys, values and MLP hidden layer, the activated 4 D beside attention's D, and
rotary temporaries."""
_SAVED_WIDTHS = 22
"""Widths D a token that a block keeps for its backward pass."""
_ENCODER_WEIGHTS = {"bfloat16": 15.26, "int8": 8.9, "4bit": 5.4}
"""GiB of Qwen3-8B: 8.19 B weights; quantised, the 0.62 B of the embedding stay in bf16."""
_CLIP_GIB = 0.25
_ENCODER_ROW_BYTES = 40 * 2**20
"""Activations and keys of one prompt under the encoder, 180 tokens with the template."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes by purpose."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    """Moments, master weights and the running mean."""
    activations: int = 0
    key_value_cache: int = 0
    """Text keys, values and modulations that are held over steps."""
    workspace: int = 0
    encoder: int = 0
    context: int = 0
    """The CUDA context of each process on the card."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, f.name) for f in fields(self))

    def in_gib(self) -> dict[str, float]:
        """Every part that is not empty, and the total, in GiB with two decimals."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        named = {name: round(size / GIB, 2) for name, size in parts.items() if size}
        return {**named, "total": round(self.total / GIB, 2)}


def text_row_bytes(config: NetworkConfig, num_tokens: int, precision: Precision) -> int:
    """Bytes of the text stream of one prompt at one time: keys, values and modulations."""
    D = config.feat_dim
    chunks = 6 * config.num_double_blocks + 3 * config.num_single_blocks + 2
    chunks += 2 * config.with_long_skip_connection
    keys_and_values = 2 * config.num_layers * num_tokens * D
    return (keys_and_values + chunks * D) * _ITEM_BYTES[precision]


def text_window_bytes(memory_bytes: int) -> int:
    """What the sampler lets text rows take that are computed ahead, on a card of this size."""
    return min(memory_bytes // 16, 2 * GIB)


def sampling_memory(
    config: NetworkConfig,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
    seeds: int = 1,
    num_steps: int = 50,
    guidance: bool = True,
    precision: Precision = "bfloat16",
    card_bytes: int = 80 * GIB,
) -> Memory:
    """A sampler that computes `rows` clips at once, `seeds` of each prompt.

    Two windows of text rows stand side by side while one follows the other; a batch copies the rows
    of its step.
    """
    require(rows >= 1, "rows", rows, "at least 1")
    item = _ITEM_BYTES[precision]
    B = rows * (2 if guidance else 1)
    prompts = -(-rows // seeds)
    text_row = text_row_bytes(config, num_tokens, precision)
    a_step = (prompts + guidance) * text_row
    all_steps = num_steps * a_step
    window = max(a_step, min(text_window_bytes(card_bytes), all_steps))
    windows = window if window >= all_steps else 2 * window
    copies = B * text_row
    motion = B * num_frames * config.feat_dim * _MOTION_WIDTHS * item
    mask = B * num_frames * (num_frames + num_tokens) * item
    return Memory(
        weights=count_parameters(config) * item,
        activations=motion + mask,
        key_value_cache=windows + copies,
        workspace=_WORKSPACE_BYTES,
        context=_CONTEXT_BYTES,
    )


def encoder_memory(precision: EncoderPrecision = "bfloat16", rows: int = 16) -> Memory:
    """The text encoders of the releases, Qwen3-8B and CLIP-L, as a process of their own."""
    weights = int((_ENCODER_WEIGHTS[precision] + _CLIP_GIB) * GIB)
    return Memory(encoder=weights + rows * _ENCODER_ROW_BYTES, context=_CONTEXT_BYTES)


def training_memory(
    config: NetworkConfig,
    *,
    rows: int,
    num_frames: int = 360,
    num_tokens: int = 36,
    num_ranks: int = 1,
    strategy: Strategy = "ddp",
    checkpointing: bool = False,
    trainable_share: float = 1.0,
) -> Memory:
    """One rank of mixed-precision AdamW training with a running mean of the weights.

    Master weights are fp32 with a bf16 copy for arithmetic. `trainable_share` below 1 stands for
    partial or LoRA fine-tuning: only that share has gradients, moments and a mean, and the frozen
    rest is kept in bf16 alone.
    """
    weights = count_parameters(config)
    trained = int(weights * trainable_share)
    split = {
        "ddp": (1, 1, 1),
        "zero1": (1, 1, num_ranks),
        "zero2": (1, num_ranks, num_ranks),
        "zero3": (num_ranks, num_ranks, num_ranks),
    }[strategy]
    tokens = rows * (num_frames + num_tokens)
    saved = 1 if checkpointing else _SAVED_WIDTHS
    kept = config.num_layers * saved + (_SAVED_WIDTHS if checkpointing else 0)
    return Memory(
        weights=(4 * trained + 2 * weights) // split[0],
        gradients=4 * trained // split[1],
        optimizer=12 * trained // split[2],
        activations=tokens * config.feat_dim * kept * 2,
        workspace=_WORKSPACE_BYTES,
        context=_CONTEXT_BYTES,
    )
