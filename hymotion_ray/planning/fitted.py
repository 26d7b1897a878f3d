"""The constants of the memory and speed models that are fitted to measurements, and their source.

They lie in `assets/fitted.json`, which `benchmarks/fit_planning.py RESULTS.json --write` makes.
Knows their names and what they stand for, not the formulas they go into.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class SamplingMemory:
    """Of a sampler's memory."""

    source: str
    context_gib: float
    """What CUDA itself takes of a card for a process."""
    workspace_gib: float
    """Scratch of products, and whatever hangs on no size."""
    windows: float
    """Of the window of text rows, what is taken of its reckoned size."""
    text_widths: float
    """Numbers a token of one call of the text half over the width D, alive at once."""
    text_rows: float
    """Of the results of one call of the text half, what is taken of their reckoned size."""
    plain_text_rows: float
    """The same once more where no fused kernels serve."""
    motion_widths: float
    """Numbers a motion frame over the width D, alive at once in a motion block at its fullest."""
    mask_numbers: float
    """Numbers an entry of the attention mask, frames by frames and tokens."""
    row_copies: float
    """Copies of a motion row's text beside the window that it comes from."""


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Of the memory of a training pass."""

    source: str
    spare_gib: float
    """What a card shows beyond all that is counted: scratch of products, gradients on their way."""
    saved_widths: float
    """16-bit numbers a token over the width D that a block keeps for its backward pass."""
    saved_widths_float32: float
    """The same of a pass in float32."""
    saved_widths_frozen: float
    """The same of a 16-bit pass with adapters beside frozen weights."""
    saved_scores: float
    """Numbers a pair of tokens and a head that attention keeps in 16 bits."""
    saved_scores_float32: float
    """The same in float32."""
    kept_widths: float
    """Of a block that is computed again: what is kept, in 16-bit numbers."""
    cast_trained: float
    """16-bit copies that a pass keeps of trained weights."""
    cast_frozen: float
    """The same of frozen ones."""
    cast_outside: float
    """The same of trained weights where blocks are computed again: those outside of blocks."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Of the time that sampling and training take, on the card that was measured."""

    source: str
    bytes_a_flop: float
    """Memory traffic of all that is no product, by operation."""
    text_factor: float
    """How much dearer an operation of the text half is than one of the motion half."""
    launch_s: float
    """Least seconds of one evaluation of the network: the start of its kernels."""
    text_launch_s: float
    """Least time of a text call, which no graph replays."""
    clip_s: float
    """Seconds a clip for drawing noise and copying."""
    float32_factor: float
    """How much slower products are in float32."""
    training_share: float
    """Of the product rate, in a training pass of blocks as they are."""
    training_share_compiled: float
    """The same of compiled blocks; not fitted: 276 and 305 clips/s of the benchmarks'
    README."""
    training_launch_s: float
    """Least seconds of a layer in a pass, forward and backward: the start of its kernels."""
    training_launch_graphed_s: float
    """The same of a pass that is replayed; not fitted, from the run of `tiny` in the benchmarks'
    README: 22 ms a step of 6 layers, 28 % of it waiting for data."""
    training_recomputed: float
    """How much longer a pass takes whose forward is computed again for its backward."""
    cpu_core_flops: float
    """Operations a second of one core in float32; measured on one of 2 shared cores."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """All of them."""

    memory: SamplingMemory
    training: TrainingMemory
    speed: Speed


@functools.cache
def fitted() -> Fitted:
    """The packaged constants."""
    return parse(files("hymotion_ray").joinpath("assets", "fitted.json").read_text("utf-8"))


def parse(text: str) -> Fitted:
    """The constants of a JSON document of the packaged one's form."""
    data: dict[str, Any] = json.loads(text)
    assert data["schema"] == SCHEMA, "assets/fitted.json is of this version"
    return Fitted(
        memory=SamplingMemory(**data["memory"]),
        training=TrainingMemory(**data["training"]),
        speed=Speed(**data["speed"]),
    )
