"""The running mean of the trained weights, kept where the weights are, sharded as they are.

Knows parameters and decay. Knows no files and no ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class RunningMean:
    """A mean of parameters that forgets exponentially."""

    def __init__(self, parameters: Mapping[str, Tensor], limit: float) -> None:
        """Starts as the parameters are; `limit` is the decay that is reached in time."""
        self._parameters = [_local(p) for p in parameters.values()]
        self._limit = limit
        self._means = [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the parameters after optimizer step `step`, counted from 1."""
        weight = 1.0 - mean_decay(step, self._limit)
        torch._foreach_lerp_(self._means, self._parameters, weight)

    @torch.no_grad()
    def restart(self) -> None:
        """Become what the parameters are now."""
        torch._foreach_copy_(self._means, self._parameters)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the parameters hold the mean; afterwards their own values, to the bit."""
        with torch.no_grad():
            own = [p.clone() for p in self._parameters]
            torch._foreach_copy_(self._parameters, self._means)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, own)


def mean_decay(step: int, limit: float) -> float:
    """Decay of the running mean at a step: short at first, so that the start is soon forgotten."""
    return min(limit, (1 + step) / (10 + step))


def _local(parameter: Tensor) -> Tensor:
    held = parameter.detach()
    return held.to_local() if isinstance(held, DTensor) else held
