"""GPU memory of one process, by what it is for. Knows shapes, no tensors and no prices.

Every figure is computed from shapes; the few constants that stand for what allocators and kernels
take are fitted to measurements (`fitted.py`). All sizes are bytes.

Letters: B motion rows (clips, times two under guidance), L frames, N text tokens, D width, T text
rows of one call.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from hymotion_ray.config.fields import require
from hymotion_ray.config.grid import GPU_TEXT_ROWS, text_window_bytes
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.parameters import count_parameters, count_resident

GIB = 2**30
Precision = Literal["float32", "bfloat16", "float16"]
EncoderPrecision = Literal["bfloat16", "int8", "4bit"]

ITEM_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_ENCODER_WEIGHTS = {"bfloat16": 15.26, "int8": 8.9, "4bit": 5.4}
"""GiB of Qwen3-8B: 8.19 B weights; quantised, the 0.62 B of the embedding stay in bf16."""
_PLAIN_TEXT_ROWS = 2.15
"""Of a call's text rows, what plain torch takes more than fused kernels in 16 bits, as samplers
with weights in host memory do: from `h200-2026-12-01-layouts.json`, 4 rows."""
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
    return (keys_and_values + chunks * D) * ITEM_BYTES[precision]


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
    window_bytes: int | None = None,
    text_rows: int = GPU_TEXT_ROWS,
    offload: bool = False,
) -> Memory:
    """A sampler that computes `rows` clips at once, `seeds` of each prompt.

    `window_bytes` bounds the text rows computed ahead (None: what a card of `card_bytes` gives
    them); `text_rows` are computed at once. With `offload` blocks' weights wait in host memory.
    """
    require(rows >= 1, "rows", rows, "at least 1")
    constants = fitted().memory
    terms = sampling_terms(
        config,
        rows=rows,
        num_frames=num_frames,
        num_tokens=num_tokens,
        seeds=seeds,
        num_steps=num_steps,
        guidance=guidance,
        precision=precision,
        window_bytes=text_window_bytes(card_bytes) if window_bytes is None else window_bytes,
        text_rows=text_rows,
    )
    size = {name: getattr(constants, name) * term for name, term in terms.items()}
    text, motion = (sum(size[name] for name in phase) for phase in (TEXT_PHASE, MOTION_PHASE))
    if offload:
        text += _PLAIN_TEXT_ROWS * terms["text_rows"]
    num_weights = count_resident(config) if offload else count_parameters(config)
    copies = 0.0 if text > motion else size["row_copies"]
    return Memory(
        weights=num_weights * ITEM_BYTES[precision],
        activations=int(max(text, motion) - copies),
        key_value_cache=int(size["windows"] + copies),
        workspace=int(size["workspace_gib"]),
        context=int(constants.context_gib * GIB),
    )


TEXT_PHASE = ("text_widths", "text_rows", "plain_text_rows")
MOTION_PHASE = ("motion_widths", "mask_numbers", "row_copies")
"""Constants of the memory that is taken while text rows, and while motion rows are computed: never
both at once."""


def sampling_terms(
    config: NetworkConfig,
    *,
    rows: int,
    num_frames: int,
    num_tokens: int,
    seeds: int,
    num_steps: int,
    guidance: bool,
    precision: Precision,
    window_bytes: int,
    text_rows: int,
) -> dict[str, float]:
    """What each fitted constant of `SamplingMemory` is multiplied by, in bytes."""
    item, D = ITEM_BYTES[precision], config.feat_dim
    B, L, N, T = rows * (2 if guidance else 1), num_frames, num_tokens, text_rows
    text_row = text_row_bytes(config, N, precision)
    a_step = (-(-rows // seeds) + guidance) * text_row
    steps = min(num_steps, max(1, window_bytes // a_step))
    return {
        "workspace_gib": GIB,
        "windows": steps * a_step,
        "text_widths": T * N * D * item,
        "text_rows": T * text_row,
        # Plain torch gathers a call's results before they are written; fused kernels write them.
        "plain_text_rows": T * text_row * (precision == "float32"),
        "motion_widths": B * L * D * item,
        "mask_numbers": B * L * (L + N) * item,
        "row_copies": B * text_row,
    }


def encoder_memory(precision: EncoderPrecision = "bfloat16", rows: int = 16) -> Memory:
    """The text encoders of the releases, Qwen3-8B and CLIP-L, as a process of their own."""
    weights = int((_ENCODER_WEIGHTS[precision] + _CLIP_GIB) * GIB)
    context = int(fitted().memory.context_gib * GIB)
    return Memory(encoder=weights + rows * _ENCODER_ROW_BYTES, context=context)
