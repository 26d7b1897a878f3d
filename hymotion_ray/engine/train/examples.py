"""One clip of a shard becomes one example: cut, mirrored, in features, with noise, t and a caption.

Everything that is drawn for an example comes from (seed, position in the stream) alone, so that it
is the same at any number of workers, in any batch and after a resume. Knows no batches, no files
and no order.

Shapes: L frames, N text tokens, C context width, V vector width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hymotion_ray.config.training import MIN_FRAMES, DataConfig, ObjectiveConfig
from hymotion_ray.engine.train.clip_windows import WholeClip, canonical_window, whole_clip
from hymotion_ray.engine.train.clips import mirror_words
from hymotion_ray.formats.shard_table import ShardCaption, ShardClip
from hymotion_ray.motion.skeleton import Skeleton
from hymotion_ray.text.condition import TextRow

FPS = 30
CONSTANT_STD = 1e-3
"""Features with a smaller deviation are constants: decoding counts it as 0."""


class Example(NamedTuple):
    """What the loss of one clip needs."""

    clip_id: str
    x: Tensor
    """(L, 201) fp32, normalised."""
    context: Tensor
    """(N, C) fp32 features of the caption's tokens."""
    vector: Tensor
    """(V,) fp32 feature of the caption."""
    noise: Tensor
    """(L, 201) fp32."""
    t: float
    drop: bool
    """Whether the condition is replaced by the null features."""
    weight: float
    """1; 0 for a clip that is not finite, whose numbers here are zeros."""


@dataclass(frozen=True, kw_only=True)
class ExampleRules:
    """What decides an example beside its clip and position."""

    seed: int
    data: DataConfig
    objective: ObjectiveConfig
    cond_mask_prob: float
    """Chance of dropping the condition."""
    mean: NDArray[np.float32]
    """(201,) mean of the features."""
    std: NDArray[np.float32]
    """(201,) deviation; below `CONSTANT_STD` it counts as infinite."""
    made_for: Skeleton
    """The dataset's body."""
    skeleton: Skeleton
    """The model's body."""
    context_dim: int
    vector_dim: int
    null_tokens: int
    """Tokens that stand for a caption that is not there: 1 where the null context is learned."""


def make_example(
    clip: ShardClip,
    position: int,
    rules: ExampleRules,
    features: Callable[[str], TextRow],
    whole: WholeClip | None = None,
) -> Example:
    """The example of `clip` at `position` of the stream.

    features: gives those of a caption. whole: gives those of whole clips; None: made here.
    """
    generator = torch.Generator().manual_seed(_seed(rules.seed, position))
    draws = torch.rand(8, generator=generator, dtype=torch.float64).tolist()
    is_mirrored = draws[0] < rules.data.mirror
    text, span = choose_caption(clip.captions, is_mirrored, draws[1])
    start, end = _cut(clip.num_frames, span, rules.data, draws[2:5])
    given = whole or partial(whole_clip, rules=rules)
    x, is_finite = _window(clip, start, end, is_mirrored, rules, given)
    noise = torch.randn(x.shape, generator=generator)
    context, vector = _condition(text, rules, features, generator)
    return Example(
        clip_id=clip.clip_id,
        x=x,
        context=context,
        vector=vector,
        noise=noise,
        t=_timestep(draws[5], rules.objective, generator),
        drop=draws[6] < rules.cond_mask_prob or not text,
        weight=float(is_finite),
    )


def clip_texts(captions: Sequence[ShardCaption], mirrors: bool) -> list[str]:
    """All texts that `make_example` may ask features for, given these captions."""
    texts = {text for text, _ in _candidates(captions, False)}
    if mirrors:
        texts |= {text for text, _ in _candidates(captions, True)}
    return sorted(texts)


def choose_caption(
    captions: Sequence[ShardCaption], is_mirrored: bool, draw: float
) -> tuple[str, tuple[float, float] | None]:
    """One of a clip's captions by draw in [0, 1), and the seconds it speaks of.

    A mirrored clip takes the captions that tell of its mirror image, or else the others with left
    and right swapped. ("", None) for a clip without captions.
    """
    candidates = _candidates(captions, is_mirrored)
    if not candidates:
        return "", None
    text, caption = candidates[int(draw * len(candidates))]
    return text, (caption.start, caption.end)


def _candidates(
    captions: Sequence[ShardCaption], is_mirrored: bool
) -> list[tuple[str, ShardCaption]]:
    told = [c for c in captions if c.text.strip()]
    fitting = [(c.text, c) for c in told if c.mirrored == is_mirrored]
    return fitting or [(mirror_words(c.text), c) for c in told]


def _seed(seed: int, position: int) -> int:
    digest = hashlib.sha256(f"{seed}/example/{position}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _cut(
    num_frames: int, span: tuple[float, float] | None, data: DataConfig, draws: Sequence[float]
) -> tuple[int, int]:
    """(first, end) frames: the caption's own, a random part of them, at most the last bucket."""
    start, end = 0, num_frames
    if span is not None:
        first, last = round(span[0] * FPS), min(num_frames, round(span[1] * FPS))
        if first >= 0 and last - first >= MIN_FRAMES:
            start, end = first, last
    length = end - start
    if draws[0] < data.crop:
        shortest = min(length, max(length // 2, MIN_FRAMES))
        length = shortest + int(draws[1] * (length - shortest + 1))
    length = min(length, data.frame_buckets[-1])
    start += int(draws[2] * (end - start - length + 1))
    return start, start + length


def _window(
    clip: ShardClip,
    start: int,
    end: int,
    is_mirrored: bool,
    rules: ExampleRules,
    whole: WholeClip,
) -> tuple[Tensor, bool]:
    """Normalised features (L, 201), and whether they are finite; zeros where they are not."""
    raw = whole(clip, is_mirrored)[start:end]
    if not bool(raw.isfinite().all()):
        return torch.zeros(end - start, len(rules.mean)), False
    is_cut = end - start < clip.num_frames
    if is_cut or is_mirrored:
        raw = canonical_window(raw, rules.skeleton)
    std = torch.from_numpy(rules.std)
    scale = torch.where(std < CONSTANT_STD, 0.0, 1.0 / std.clamp_min(CONSTANT_STD))
    x = (raw - torch.from_numpy(rules.mean)) * scale
    is_finite = bool(x.isfinite().all())
    return (x if is_finite else torch.zeros_like(x)), is_finite


def _condition(
    text: str,
    rules: ExampleRules,
    features: Callable[[str], TextRow],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    if not text:
        nothing = torch.zeros(rules.null_tokens, rules.context_dim)
        return nothing, torch.zeros(rules.vector_dim)
    row = features(text)
    context, vector = row.context.float(), row.vector.float()
    if rules.objective.text_noise:
        context, vector = (
            part
            + rules.objective.text_noise
            * part.square().mean().sqrt()
            * torch.randn(part.shape, generator=generator)
            for part in (context, vector)
        )
    return context, vector


def _timestep(draw: float, objective: ObjectiveConfig, generator: torch.Generator) -> float:
    """T in [0, 1]. Logit-normal: Esser et al., Scaling rectified flow transformers (2024), 3.1."""
    if objective.timestep == "uniform":
        return draw
    normal = float(torch.randn((), generator=generator, dtype=torch.float64))
    return 1 / (1 + math.exp(-(objective.logit_mean + objective.logit_std * normal)))
