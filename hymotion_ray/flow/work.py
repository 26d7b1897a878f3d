"""How much the sampler had the network compute: calls and shapes, as counted while it ran.

Knows no arithmetic; `hymotion_ray.planning.flops` turns the counts into operations.
"""

from __future__ import annotations

from collections import Counter


class Work:
    """Calls of the two halves of the network, by shape."""

    def __init__(self) -> None:
        self.text: Counter[tuple[int, int]] = Counter()
        """(rows, tokens) of text calls: how many there were."""
        self.motion: Counter[tuple[int, int, int]] = Counter()
        """(rows, frames, tokens) of motion calls: how many there were."""

    def count_text(self, rows: int, tokens: int) -> None:
        """Note one call of the text half."""
        self.text[rows, tokens] += 1

    def count_motion(self, rows: int, frames: int, tokens: int) -> None:
        """Note one call of the motion half."""
        self.motion[rows, frames, tokens] += 1

    def clear(self) -> None:
        """Start again from nothing."""
        self.text.clear()
        self.motion.clear()

    @property
    def num_text_rows(self) -> int:
        """Text rows computed, padding included."""
        return sum(rows * calls for (rows, _), calls in self.text.items())

    @property
    def num_motion_rows(self) -> int:
        """Motion rows computed, null branch and padding included."""
        return sum(rows * calls for (rows, _, _), calls in self.motion.items())
