"""Frame rates as files tell them: rates, steps, and numbers cut off in text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hymotion_ray.errors import SourceError

MIN_FPS, MAX_FPS = 1.0, 1000.0
# A step is written with few digits; a rate this near to a common one means the nearest of those.
_FILM = (24.0, 30.0, 60.0)
_COMMON = (*_FILM, 25.0, 50.0, 72.0, 90.0, 100.0, 120.0, 240.0, *(rate / 1.001 for rate in _FILM))
_SLACK = 1e-3


def rate_of_step(step: object, what: str) -> float:
    """The rate of a step in seconds, a number or its text; `SourceError` outside 1 to 1000 fps."""
    try:
        seconds = float(step)  # type: ignore[arg-type]
    except (TypeError, ValueError) as cause:
        raise SourceError(f"{what} is {str(step)[:40]!r}, not a number", "bad_fps") from cause
    if not math.isfinite(seconds) or seconds <= 0:
        raise SourceError(f"{what} is {seconds} s; allowed: above 0", "bad_fps")
    return snapped(checked_rate(1 / seconds, what))


def snapped(fps: float) -> float:
    """The nearest common rate within 0.1 % of `fps`, else `fps`."""
    nearest = min(_COMMON, key=lambda rate: abs(fps / rate - 1))
    return nearest if abs(fps / nearest - 1) < _SLACK else fps


def checked_rate(value: Any, what: str) -> float:
    """A rate from a number or an array of one number; `SourceError` outside 1 to 1000 fps."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise SourceError(f"{what} is {str(value)[:40]!r}, not one number", "bad_fps")
    fps = float(array.reshape(()))
    if not MIN_FPS * (1 - _SLACK) <= fps <= MAX_FPS * (1 + _SLACK):
        raise SourceError(
            f"{what} gives {fps:g} frames a second; allowed: {MIN_FPS:g} to {MAX_FPS:g}", "bad_fps"
        )
    return fps
