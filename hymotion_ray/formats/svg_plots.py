"""Small plots as inline SVG text, for pages that ask the network for nothing. Knows no data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

_INK, _BAR, _LIMIT = "#3c4658", "#5b8def", "#d0453e"
_WIDTH, _HEIGHT = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 14, 40


@dataclass(frozen=True)
class Histogram:
    """Counts of one number over even bins; what lies beyond falls into the outer bins."""

    title: str
    """What is counted, with its unit."""
    low: float
    high: float
    counts: NDArray[np.int64]
    limits: tuple[float, ...] = ()
    """Bounds of a gate, drawn as lines where they lie within the bins."""

    @classmethod
    def empty(
        cls,
        title: str,
        low: float,
        high: float,
        *,
        num_bins: int = 40,
        limits: Sequence[float] = (),
    ) -> Histogram:
        """One without any number yet."""
        return cls(title, low, high, np.zeros(num_bins, dtype=np.int64), tuple(limits))

    def add(self, values: NDArray[np.float64]) -> None:
        """Count numbers; those that are not finite are left out."""
        values = values[np.isfinite(values)]
        place = (values - self.low) / (self.high - self.low) * len(self.counts)
        place = np.clip(place.astype(np.int64), 0, len(self.counts) - 1)
        self.counts[:] += np.bincount(place, minlength=len(self.counts))


def histogram_svg(histogram: Histogram) -> str:
    """A histogram with its limits as lines."""
    counts = histogram.counts
    top = max(1, int(counts.max(initial=0)))
    width = (_WIDTH - _LEFT - _RIGHT) / len(counts)
    height = _HEIGHT - _TOP - _BOTTOM
    parts = []
    for i, count in enumerate(counts):
        bar = height * int(count) / top
        parts.append(
            f'<rect x="{_LEFT + i * width:.1f}" y="{_TOP + height - bar:.1f}"'
            f' width="{max(width - 1, 0.5):.1f}" height="{bar:.1f}" fill="{_BAR}"/>'
        )
    for limit in histogram.limits:
        share = (limit - histogram.low) / (histogram.high - histogram.low)
        if 0 <= share <= 1:
            x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_TOP + height}"'
                f' stroke="{_LIMIT}" stroke-width="2" stroke-dasharray="5 3"/>'
            )
    base = _TOP + height
    parts.append(_line(_LEFT, base, _WIDTH - _RIGHT, base))
    for share in (0.0, 0.5, 1.0):
        x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        value = histogram.low + share * (histogram.high - histogram.low)
        suffix = "+" if share == 1 else ""
        parts.append(_text(x, base + 14, f"{value:g}{suffix}", "middle"))
    parts.append(_text(_LEFT - 5, _TOP + 9, f"{top}", "end"))
    parts.append(_text(_LEFT - 5, base, "0", "end"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 7, histogram.title, "middle"))
    return _svg(_WIDTH, _HEIGHT, histogram.title, parts)


def bars_svg(title: str, bars: Sequence[tuple[str, float]], *, unit: str = "") -> str:
    """Horizontal bars with their names and numbers."""
    row, left, width = 24, 150, 560
    top = max((value for _, value in bars), default=0) or 1
    parts = []
    for i, (name, value) in enumerate(bars):
        y = 6 + i * row
        length = (width - left - 90) * value / top
        parts.append(_text(left - 8, y + 14, name, "end"))
        parts.append(
            f'<rect x="{left}" y="{y}" width="{max(length, 1):.1f}" height="{row - 6}"'
            f' fill="{_BAR}"/>'
        )
        number = f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
        parts.append(_text(left + length + 6, y + 14, f"{number}{unit}", "start"))
    return _svg(width, 12 + row * len(bars), title, parts)


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{_INK}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" fill="{_INK}">'
        f"{escape(text)}</text>"
    )
