"""Fixed-step solvers of dx/dt = v(x, t) from t = 0 to t = 1. Knows no network.

All times are fp32 numbers that depend on method and step count alone, so everything that depends on
time alone can be computed ahead of the integration.

Sources: Euler's method; the explicit midpoint rule; Kutta's 3/8 rule (Kutta 1901; Hairer, Norsett &
Wanner, Solving ordinary differential equations I, table II.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hymotion_ray.config.sampling import Method
from hymotion_ray.flow.upload import upload

NullUse = Literal["new", "kept", "none"]
"""What an evaluation does about guidance: computes the null branch, takes over the direction of the
last one that did, or goes without."""

Velocity = Callable[[Tensor, Any], Tensor]
"""The velocity of x at a time, or at one time a row where rows stand at steps of their own."""


@dataclass(frozen=True)
class Step:
    """One solver step: the times at which it asks for the velocity, and its length."""

    method: Method
    times: tuple[float, ...]
    dt: float
    guided: tuple[float, float] = (0.0, 1.0)
    """First and last time of guidance."""
    new_null: bool = True
    """Whether the null branch is computed in this step."""

    def null_use(self, t: float) -> NullUse:
        """What the evaluation at time t of this step does about guidance."""
        first, last = self.guided
        if not first <= t <= last:
            return "none"
        return "new" if self.new_null else "kept"


class RowFactors:
    """A number a row, by which rows of a batch are multiplied.

    Divided and multiplied in double precision and rounded once, as Python does with the one number
    of a `Step`, so that a row's bits are the same either way.
    """

    def __init__(self, values: Sequence[float], device: torch.device) -> None:
        self.values, self.device = values, device

    def __truediv__(self, divisor: float) -> RowFactors:
        return RowFactors([v / divisor for v in self.values], self.device)

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, Tensor):
            return RowFactors([v * other for v in self.values], self.device)
        return upload(self.values, torch.float32, self.device)[:, None, None] * other


@dataclass(frozen=True)
class RowSteps:
    """One step of every row of a batch, each at its own times."""

    method: Method
    times: tuple[tuple[float, ...], ...]
    """For each stage of the method, a time a row."""
    dt: RowFactors


def row_steps(steps: Sequence[Step], device: torch.device) -> RowSteps:
    """The steps of several rows, of one method, as one."""
    return RowSteps(
        steps[0].method,
        tuple(zip(*(step.times for step in steps), strict=True)),
        RowFactors([step.dt for step in steps], device),
    )


def solver_steps(method: Method, num_steps: int) -> list[Step]:
    """The steps over `linspace(0, 1, num_steps + 1)`, every time an fp32 number."""
    grid = torch.linspace(0, 1, num_steps + 1).numpy()
    return [_step(method, t0, t1) for t0, t1 in pairwise(grid)]


def _step(method: Method, t0: np.float32, t1: np.float32) -> Step:
    dt = t1 - t0
    if method == "euler":
        times = [t0]
    elif method == "midpoint":
        times = [t0, t0 + dt / 2]
    else:
        times = [t0, t0 + dt / 3, t0 + dt * 2 / 3, t1]
    return Step(method, tuple(float(np.float32(t)) for t in times), float(dt))


def stage_times(steps: list[Step]) -> list[float]:
    """The distinct times at which `steps` ask for the velocity, in order."""
    return list(dict.fromkeys(t for step in steps for t in step.times))


def advance(velocity: Velocity, x: Tensor, step: Step | RowSteps) -> Tensor:
    """One step: from x at its start to x at its end."""
    t: Any = step.times
    dt: Any = step.dt
    k1 = velocity(x, t[0])
    if step.method == "euler":
        return x + dt * k1
    if step.method == "midpoint":
        return x + dt * velocity(x + dt / 2 * k1, t[1])
    k2 = velocity(x + dt / 3 * k1, t[1])
    k3 = velocity(x + dt * (k2 - k1 / 3), t[2])
    k4 = velocity(x + dt * (k1 - k2 + k3), t[3])
    return x + dt / 8 * (k1 + 3 * (k2 + k3) + k4)
