"""Draws training batches: windows of tracks in the canonical frame, each with a caption's features.

Knows how windows are cut, turned to face +Z from x = z = 0, and normalised. Does not know how
tracks were made, nor the network. Everything lies on one device and is drawn by one generator, so
a seed and a step count give the same batches on the same device and build.

Shapes: B rows, L frames of the bucket, N text tokens, C context width, V vector width, T frames of
all tracks together.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hymotion_ray.engine.train.clips import FPS, MIN_FRAMES, TURNS, Track
from hymotion_ray.text.encoder import TextEncoder

STRAIGHT_DEGREES_PER_SECOND = 6.0
"""A window that turns less than this on the whole goes straight."""
CONSTANT_STD = 1e-3
"""Features with a smaller deviation are constants: decoding counts it as 0."""
STATISTICS_BATCHES = 12
TOKEN_MULTIPLE = 8

_SUBJECTS = (
    "a person", "the person", "someone", "somebody", "a man", "a woman", "the man", "he", "she",
    "the figure", "a character", "a human",
)  # fmt: skip
_SETTINGS = (
    "in the park", "across the room", "on the street", "in a large hall", "calmly", "slowly",
    "at a steady pace", "while looking ahead", "on a sunny day", "with great care", "once more",
    "in the gym", "without stopping", "then stands still", "over and over",
)  # fmt: skip
_VARIANTS = 12


class Batch(NamedTuple):
    """Windows and what is said of them."""

    x: Tensor
    """(B, L, 201) normalised motion, 0 past a row's end."""
    length: Tensor
    """(B,) int64 frames."""
    context: Tensor
    """(B, N, C) token features of a caption each."""
    vector: Tensor
    """(B, 1, V) the captions' own features."""
    context_length: Tensor
    """(B,) int64 tokens."""


class Batches:
    """All tracks and caption features on one device, and the drawing of batches from them."""

    def __init__(
        self, tracks: Sequence[Track], encoder: TextEncoder, device: torch.device, seed: int
    ) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self._features = torch.cat([track.features for track in tracks]).float()
        facing = hip_heading(self._features)
        lengths = torch.tensor([len(track.features) for track in tracks])
        unwrapped = [np.unwrap(part.double().numpy()) for part in facing.split(lengths.tolist())]
        self._facing = torch.from_numpy(np.concatenate(unwrapped)).float().to(device)
        self._features = self._features.to(device)
        self._lengths = lengths.to(device)
        self._firsts = (lengths.cumsum(0) - lengths).to(device)
        self._num_starts = torch.tensor([track.num_starts for track in tracks], device=device)
        self._min_frames = torch.tensor([track.min_frames for track in tracks], device=device)
        self._weights = _clip_weights(tracks).to(device)
        texts, self._caption_table = _caption_table(tracks, random.Random(seed))
        self._caption_table = self._caption_table.to(device)
        condition = encoder.encode(texts)
        # Sequence lengths that are multiples of 8 keep attention's fast kernels on a GPU.
        padding = -condition.context.shape[1] % TOKEN_MULTIPLE
        self._context = F.pad(condition.context.float(), (0, 0, 0, padding)).to(device)
        self._vector = condition.vector.float().to(device)
        self._context_lengths = condition.length.to(device)
        size = self._context.square().sum() / (self._context_lengths.sum() * self._context.shape[2])
        self._context_size = float(size.sqrt())
        self.mean, self.std = self._statistics()

    def draw(self, num_rows: int, num_frames: int, text_noise: float) -> Batch:
        """A batch of normalised windows, padded to num_frames; frames past a row's length are 0."""
        batch = self._windows(num_rows, num_frames)
        valid_BL1 = self._valid(batch.length, num_frames)
        scale = torch.where(self.std < CONSTANT_STD, 0.0, 1.0 / self.std.clamp_min(CONSTANT_STD))
        x_BLF = (batch.x - self.mean) * scale * valid_BL1
        noise = [
            torch.randn(part.shape, generator=self.generator, device=self.device)
            for part in (batch.context, batch.vector)
        ]
        context = batch.context + text_noise * self._context_size * noise[0]
        vector = batch.vector + text_noise * noise[1]
        return Batch(x_BLF, batch.length, context, vector, batch.context_length)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1) from this object's generator."""
        return torch.rand(*shape, generator=self.generator, device=self.device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers from this object's generator."""
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def _windows(self, num_rows: int, num_frames: int) -> Batch:
        track_B = torch.multinomial(
            self._weights, num_rows, replacement=True, generator=self.generator
        )
        shortest_B = self._min_frames[track_B].clamp(max(num_frames // 2, MIN_FRAMES), num_frames)
        length_B = (shortest_B + self.uniform(num_rows) * (num_frames + 1 - shortest_B)).long()
        room_B = (self._lengths[track_B] - length_B + 1).clamp_min(1)
        start_B = (self.uniform(num_rows) * torch.minimum(self._num_starts[track_B], room_B)).long()
        length_B = torch.minimum(length_B, self._lengths[track_B] - start_B)
        first_B = self._firsts[track_B] + start_B
        steps_L = torch.arange(num_frames, device=self.device)
        index_BL = first_B[:, None] + torch.minimum(steps_L, length_B[:, None] - 1)
        x_BLF = canonical(self._features[index_BL], self._facing[first_B])
        turned_B = self._facing[first_B + length_B - 1] - self._facing[first_B]
        text_B = self._caption(track_B, torch.rad2deg(turned_B) / (length_B / FPS))
        return Batch(
            x_BLF,
            length_B,
            self._context[text_B],
            self._vector[text_B],
            self._context_lengths[text_B],
        )

    def _caption(self, track_B: Tensor, degrees_per_second_B: Tensor) -> Tensor:
        straight, left, right = (TURNS.index(name) for name in ("straight", "left", "right"))
        turn_B = torch.where(degrees_per_second_B > 0, left, right)
        turn_B[degrees_per_second_B.abs() < STRAIGHT_DEGREES_PER_SECOND] = straight
        first_B, count_B = self._caption_table[track_B, turn_B].unbind(-1)
        return first_B + (self.uniform(len(track_B)) * count_B).long()

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation (201,) of window frames, over windows as training draws them."""
        parts = []
        for _ in range(STATISTICS_BATCHES):
            batch = self._windows(128, 180)
            parts.append(batch.x[self._valid(batch.length, 180)[..., 0]].double())
        frames = torch.cat(parts)
        return frames.mean(0).float(), frames.std(0, unbiased=False).float()

    def _valid(self, length_B: Tensor, num_frames: int) -> Tensor:
        return (torch.arange(num_frames, device=self.device) < length_B[:, None])[..., None]


def hip_heading(features: Tensor) -> Tensor:
    """The yaw (...,) in radians that bodies (..., 201) face, by the line from hip to hip.

    As `motion.rotations.heading` for a body that stands; clear also for one that crawls or lies.
    """
    return torch.atan2(-features[..., 7], features[..., 3])


def canonical(x_BLF: Tensor, facing_B: Tensor) -> Tensor:
    """Windows turned by -facing about Y and moved so that their first frame has x = z = 0.

    x (B,L,201) un-normalised features of a skeleton whose rest pelvis lies on the Y axis; facing
    (B,) radians, 0 facing +Z and positive towards +X.
    """
    cosine, sine = facing_B.cos(), facing_B.sin()
    zero, one = torch.zeros_like(cosine), torch.ones_like(cosine)
    rows = [cosine, zero, -sine, zero, one, zero, sine, zero, cosine]
    turn_B33 = torch.stack(rows, dim=-1).unflatten(-1, (3, 3))
    start_B1F = x_BLF[:, :1, :3] * x_BLF.new_tensor([1.0, 0.0, 1.0])
    transl = torch.einsum("bij,blj->bli", turn_B33, x_BLF[..., :3] - start_B1F)
    columns = x_BLF[..., 3:9].unflatten(-1, (3, 2))
    root = torch.einsum("bij,bljk->blik", turn_B33, columns).flatten(-2)
    places = torch.einsum("bij,blkj->blki", turn_B33, x_BLF[..., 135:].unflatten(-1, (-1, 3)))
    return torch.cat([transl, root, x_BLF[..., 9:135], places.flatten(-2)], dim=-1)


def vary(text: str, draw: random.Random) -> str:
    """A caption with another subject, and sometimes one word less or a setting that says little.

    The settings make long prompts usual, so that words beside the action matter little.
    """
    if text.startswith("a person "):
        text = draw.choice(_SUBJECTS) + text.removeprefix("a person")
    words = text.split()
    if len(words) > 4 and draw.random() < 0.3:
        del words[draw.randrange(len(words))]
    for _ in range(draw.choice((0, 0, 0, 1, 2))):
        words.append(draw.choice(_SETTINGS))
    return " ".join(words)


def _caption_table(tracks: Sequence[Track], draw: random.Random) -> tuple[list[str], Tensor]:
    """All texts, and for each track and turn the (first, count) of its own among them."""
    texts: list[str] = []
    spans: dict[tuple[str, ...], tuple[int, int]] = {}
    table = torch.zeros(len(tracks), len(TURNS), 2, dtype=torch.int64)
    for i, track in enumerate(tracks):
        for turn, captions in enumerate(track.captions):
            if captions not in spans:
                forms = [text for text in captions for _ in range(_VARIANTS)]
                varied = [text if k % 3 == 0 else vary(text, draw) for k, text in enumerate(forms)]
                spans[captions] = (len(texts), len(varied))
                texts.extend(varied)
            table[i, turn] = torch.tensor(spans[captions])
    return texts, table


def _clip_weights(tracks: Sequence[Track]) -> Tensor:
    """Chance of each track: every clip the same, and within a clip every track."""
    clips = [track.clip for track in tracks]
    return torch.tensor([1.0 / clips.count(clip) for clip in clips])
