"""Presets of single cards by their size: what of a job fits, computed from the memory model.

Knows sizes, no makers: a card of 24 GB is any of them. A preset caps the clips computed at once
(and so the seeds of a pass), the length of a clip and the tokens of a prompt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hymotion_ray.config.grid import GridCell, text_window_bytes
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.planning.memory import (
    GIB,
    Precision,
    encoder_memory,
    sampling_memory,
)
from hymotion_ray.planning.placement import MARGIN, ROWS

CARD_GB = (6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 80)
"""Sizes that have a preset, as makers name them."""
_USABLE = 0.91
"""GiB that CUDA reports a GB of the name, at the least: 22.0 of an L4's 24, 14.6 of a T4's 16."""
_FRAMES = (360, 240, 150)
"""Lengths that are tried: 12 s, 8 s and 5 s at 30 frames a second."""
_TOKENS = 64
_WORDS = 30
"""What about 40 tokens of the releases' encoder are; longer prompts take a larger cell."""
_FEWEST_ROWS = 4
"""Rows for which a shorter clip is taken rather than fewer."""


@dataclass(frozen=True, kw_only=True)
class CardPreset:
    """What fits one card."""

    name: str
    usable_gib: float
    """Memory as CUDA reports it, at the least."""
    rows: int
    """Clips at once, and so seeds of one prompt in a pass; more run in further passes."""
    max_frames: int
    """Longest clip."""
    max_tokens: int
    """Longest prompt that the preset reckons with."""
    warn_words: int
    """Prompts of more words are warned of."""
    encoder: Literal["none", "gpu", "cpu"]
    """Where the large text encoder runs: on the card beside the sampler, or on CPU."""
    encoder_gpus: float
    """Its share of the card."""
    sampler_bytes: int
    """What the sampler may take of the card, CUDA's context included."""
    window_bytes: int
    """Text rows computed ahead."""

    def settings(self) -> dict[str, float]:
        """The settings of `render` that carry the preset out."""
        values: dict[str, float] = {"resources.rows": self.rows}
        if self.encoder != "none":
            values["resources.encoder_gpus"] = self.encoder_gpus
        return values


def parse_preset(name: str) -> int:
    """The GB of `card-24gb`; `ConfigError` naming all presets for another name."""
    match = re.fullmatch(r"card-(\d{1,4})gb", name.lower())
    gb = int(match[1]) if match else 0
    if gb not in CARD_GB:
        names = ", ".join(f"card-{size}gb" for size in CARD_GB)
        raise ConfigError(f"preset is {name!r}; allowed: {names}")
    return gb


def card_preset(
    gb: int,
    network: NetworkConfig,
    *,
    has_encoder: bool = True,
    precision: Precision = "bfloat16",
) -> CardPreset:
    """The preset of a card of `gb` GB for a network; `ConfigError` where not one clip fits.

    The encoder shares the card where its exact form leaves room for a few clips, else it runs on
    CPU: a quantised one would change results.
    """
    usable = _USABLE * gb
    card = int(usable * GIB)
    encoder = encoder_memory().total
    share = round(encoder / card + 0.005, 2)
    places: list[tuple[Literal["none", "gpu", "cpu"], float]] = [("none", 0.0)]
    if has_encoder:
        places = [("gpu", share), ("cpu", 0.0)] if share < 1 else [("cpu", 0.0)]
    window = text_window_bytes(card)
    for place, taken in places:
        room = int(card * (1 - taken))
        found = _largest(network, precision, int(MARGIN * room), window)
        if found is not None and (found[0] >= _FEWEST_ROWS or place != "gpu"):
            return CardPreset(
                name=f"card-{gb}gb",
                usable_gib=round(usable, 2),
                rows=found[0],
                max_frames=found[1],
                max_tokens=_TOKENS,
                warn_words=_WORDS,
                encoder=place,
                encoder_gpus=taken,
                sampler_bytes=room,
                window_bytes=window,
            )
    needed = _needed(network, precision, 1, _FRAMES[-1], window) / MARGIN / GIB
    least = _needed(network, precision, 1, _FRAMES[-1], window, offload=True) / MARGIN / GIB
    there = f"--offload layers --rows 1 ({least:.1f} GiB), " if least <= usable else ""
    raise ConfigError(
        f"a card of {gb} GB has about {usable:.1f} GiB, and one clip of {_FRAMES[-1] // 30} s takes"
        f" {needed:.1f}; allowed: {there}a larger card, or the smaller model"
    )


def smallest_preset(
    network: NetworkConfig,
    cell: GridCell,
    *,
    has_encoder: bool,
    precision: Precision = "bfloat16",
    above_bytes: int = 0,
) -> CardPreset | None:
    """The preset of the smallest card with more than `above_bytes` that holds clips of `cell`.

    One at a time is enough. None where no card of a preset does.
    """
    for gb in CARD_GB:
        if int(_USABLE * gb * GIB) <= above_bytes:
            continue
        try:
            preset = card_preset(gb, network, has_encoder=has_encoder, precision=precision)
        except ConfigError:
            continue
        needed = sampling_memory(
            network,
            rows=1,
            num_frames=cell.frames,
            num_tokens=cell.tokens,
            precision=precision,
            window_bytes=preset.window_bytes,
        ).total
        if cell.frames <= preset.max_frames and needed <= MARGIN * preset.sampler_bytes:
            return preset
    return None


def _largest(
    network: NetworkConfig, precision: Precision, room: int, window: int
) -> tuple[int, int] | None:
    """Rows and frames of the largest cell that takes at most `room` bytes; few rows come last."""
    for least in (_FEWEST_ROWS, 1):
        for frames in _FRAMES:
            for rows in ROWS:
                if rows >= least and _needed(network, precision, rows, frames, window) <= room:
                    return rows, frames
    return None


def _needed(
    network: NetworkConfig,
    precision: Precision,
    rows: int,
    frames: int,
    window: int,
    *,
    offload: bool = False,
) -> int:
    return sampling_memory(
        network,
        rows=rows,
        num_frames=frames,
        num_tokens=_TOKENS,
        precision=precision,
        window_bytes=window,
        offload=offload,
    ).total
