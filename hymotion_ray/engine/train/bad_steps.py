"""Steps whose numbers are not finite: which clips are to blame, and what is told. Ray-free.

Knows losses by clip on all ranks. Decides nothing about weights: the loop skips, rolls back, stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hymotion_ray.engine.train.micro_batch import MicroBatch
from hymotion_ray.errors import TrainingError

_NAMED = 8


class BadSteps:
    """What there is to say of bad steps; each clip that is not finite is named once."""

    def __init__(self, max_bad_steps: int, say: Callable[[str], None], rank: int) -> None:
        self._max_bad_steps, self._say, self._rank = max_bad_steps, say, rank
        self._named: set[str] = set()

    def say_clip(self, step: int, clip_id: str) -> None:
        """A clip holds numbers that are not finite; it was left out of the step."""
        if clip_id not in self._named:
            self._named.add(clip_id)
            self._say(f"step {step}: clip {clip_id!r} is not finite; it is left out of every step")

    def clips(self, batches: Sequence[MicroBatch], losses: Sequence[Tensor]) -> list[str]:
        """Clips of any rank whose loss is not finite. A collective."""
        own = [
            clip_id
            for batch, part in zip(batches, losses, strict=True)
            for clip_id, is_finite in zip(
                batch.clip_ids, torch.isfinite(part).tolist(), strict=True
            )
            if not is_finite
        ]
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return own
        found: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(found, own)
        return [clip_id for part in found for clip_id in part]

    def say_step(self, step: int, bad: Sequence[str]) -> None:
        """A step was skipped."""
        if self._rank == 0:
            self._say(f"step {step}: skipped, {_blame(bad)}")

    def error(self, step: int, bad: Sequence[str], *, can_roll_back: bool) -> TrainingError:
        """Why training ends."""
        why = (
            "and there is no checkpoint to go back to"
            if can_roll_back
            else "and that again after going back to the last checkpoint"
        )
        return TrainingError(
            f"step {step}: {self._max_bad_steps} steps in a row were not finite, {why};"
            f" {_blame(bad)}. The checkpoints are whole. Take the named clips out, or lower"
            " --set optimizer.learning_rate, or use parallel.precision=float32; then run again"
        )


def _blame(bad: Sequence[str]) -> str:
    if not bad:
        return "a gradient is not finite although every loss is"
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    return f"the loss is not finite for clip {', '.join(map(repr, bad[:_NAMED]))}{more}"
