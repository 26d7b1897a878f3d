"""What passes between HTTP processes and samplers: plain values. Knows no ray and no HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

BRANCHES = {True: 2, False: 1}
"""Network rows a clip, by whether it is guided."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Condition:
    """Text features of one prompt, without padding."""

    name: str
    """Hash of encoder and text: clips of one name share their text work."""
    context: torch.Tensor
    """(n, C)."""
    vector: torch.Tensor
    """(V,)."""
    truncated: str = ""
    """Encoders that cut the text."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """One request's clips for a sampler: one prompt, one length, several seeds."""

    id: str
    """Job and attempt, for cancelling."""
    key: str
    """Whose it is: samplers are fair between keys."""
    text: str
    condition: Condition
    num_frames: int
    seeds: tuple[int, ...]
    num_steps: int
    guidance_scale: float
    budget_s: float
    """Seconds from now in which it should end; the nearest end goes first."""

    @property
    def units_a_clip(self) -> float:
        """Network frames that one clip takes, all steps together: what queues are measured in."""
        return clip_units(self.num_frames, self.num_steps, self.guidance_scale)

    @property
    def units(self) -> float:
        """Network frames of all clips."""
        return len(self.seeds) * self.units_a_clip


def clip_units(num_frames: int, num_steps: int, guidance_scale: float) -> float:
    """Network frames of a clip: frames x steps x branches."""
    return float(num_frames * num_steps * BRANCHES[guidance_scale > 1.0])


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much a sampler replica has to do and how fast it is."""

    replica: str
    backlog: float
    """Units that wait or run."""
    speed: float
    """Units a second when its batches are full, measured."""
    live: int = 0
    """Clips in batches."""
    queued: int = 0
    """Clips that wait."""


_PROGRESS_S, _PROGRESS_A_SECOND, _PROGRESS_A_STALL = 0.25, 8.0, 4.0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A sign of life: steps done of all steps of a `Work`."""

    done: int
    total: int
    load: Load


def progress_pause_s(num_works: int, stall_s: float) -> float:
    """Seconds between two signs of life of each of `num_works` works on one sampler.

    A sign takes a millisecond or two of Python on both sides, so all works together send a few a
    second; but each work sends several before it would count as stalled.
    """
    pause = max(_PROGRESS_S, num_works / _PROGRESS_A_SECOND)
    return min(pause, stall_s / _PROGRESS_A_STALL)


@dataclass(frozen=True, kw_only=True)
class ClipDone:
    """One clip, finished: its npz file and how it came about; or why there is none."""

    seed: int
    npz: bytes | None
    info: dict[str, Any] = field(default_factory=dict)
    """device, cell, precision, degradations, seconds, queue_seconds, finish_seconds, quality."""
    code: str = ""
    error: str = ""
    load: Load | None = None
