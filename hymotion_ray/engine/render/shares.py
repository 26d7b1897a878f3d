"""How a large text encoder and the samplers divide the GPUs. Ray-free: sizes in, shares out.

The encoder of the released models takes 16 GB, the network 5 to 9 GB. On 24 GB both stay in memory
together, with as many clips at once as then fit; on smaller cards the encoder gets a card of its
own where there are several, else the CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.sampling import Precision
from hymotion_ray.config.text import TextPlacement
from hymotion_ray.planning.memory import EncoderPrecision, encoder_memory, sampling_memory

_ROWS = (64, 32, 16, 8, 4)
"""Clips at once in a sampler that are tried, most first."""
_FEW_ROWS, _MANY_CARDS = 16, 8
"""All samplers of a folder compute equally many rows. With many cards, one for the encoder costs
less than few rows on all of them."""
_FRAMES, _TOKENS = 360, 64
"""The cell that must fit: the longest clips, and a sentence or two."""
_GIB = 2**30
RELEASED_WEIGHTS = 8_310_000_000
"""Of Qwen3-8B and CLIP-L together."""
_ENCODER_FORMATS: dict[str, EncoderPrecision] = {"int8": "int8", "4bit": "4bit"}


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of a GPU, and the rows that fit."""

    encoder_gpus: float
    """Of one GPU, for each text encoder: 0 means the CPUs."""
    beside_gpus: float
    """Of one GPU, for the sampler that shares it with an encoder; others take a whole one."""
    rows: int
    """Clips at once in a sampler."""
    words: str
    """What was decided, and why."""


def encoder_bytes(text: TextPlacement, weights: int = RELEASED_WEIGHTS) -> int:
    """GPU memory of one process with text encoders of so many weights."""
    needed = encoder_memory(_ENCODER_FORMATS.get(text.precision, "bfloat16"))
    scale = weights / RELEASED_WEIGHTS * (2 if text.precision == "float32" else 1)
    return int(needed.encoder * scale) + needed.context


def divide(
    network: NetworkConfig,
    text: TextPlacement,
    precision: Precision,
    cards: Sequence[int],
    encoder_weights: int = RELEASED_WEIGHTS,
) -> Shares:
    """Shares for GPUs of `cards` bytes each; the smallest one decides."""
    card = min(cards)
    encoder = encoder_bytes(text, encoder_weights)
    share = math.ceil(100 * encoder / card) / 100
    beside = _rows_that_fit(network, precision, int(card * (1 - share)))
    alone = _rows_that_fit(network, precision, card) or _ROWS[-1]
    size, needed = f"{card / _GIB:.0f} GiB", f"{encoder / _GIB:.0f} GiB"
    is_cramped = beside < _FEW_ROWS and len(cards) >= _MANY_CARDS
    if beside and not is_cramped:
        return Shares(
            encoder_gpus=share,
            beside_gpus=round(1 - share, 2),
            rows=beside,
            words=f"the text encoder ({needed}) shares a GPU of {size} with a sampler",
        )
    if encoder <= card and len(cards) > 1:
        return Shares(
            encoder_gpus=1.0,
            beside_gpus=1.0,
            rows=alone,
            words=f"the text encoder ({needed}) has a GPU of {size} to itself, as"
            f" {'few rows' if beside else 'no sampler'} would fit beside it",
        )
    return Shares(
        encoder_gpus=0.0,
        beside_gpus=1.0,
        rows=alone,
        words=f"the text encoder ({needed}) runs on CPUs: it does not fit"
        f" {'a' if encoder > card else 'beside a sampler on the one'} GPU of {size}",
    )


def _rows_that_fit(network: NetworkConfig, precision: Precision, room: int) -> int:
    """The most rows whose sampler takes no more than `room` bytes of a card; 0 when none does."""
    for rows in _ROWS:
        needed = sampling_memory(
            network,
            rows=rows,
            num_frames=_FRAMES,
            num_tokens=_TOKENS,
            precision="float32" if precision == "float32" else "bfloat16",
            card_bytes=room,
        )
        if needed.total <= room:
            return rows
    return 0
