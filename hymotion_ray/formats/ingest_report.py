"""The page that tells what an ingest made of its sources: counts, plots, pictures. Self-contained.

Knows how the page looks. It is given counts, histograms and motions; it does not know where they
come from. Pictures need the extra [export] (Pillow); without it the page says so and has none.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from hymotion_ray.errors import MissingDependencyError
from hymotion_ray.formats.svg_plots import Histogram, bars_svg, histogram_svg
from hymotion_ray.formats.video import write_png
from hymotion_ray.motion.motion import Motion

_POSES = 8
REASONS = {
    "not_finite": "Holds NaN or infinity.",
    "too_short": "Under 20 frames at 30 a second.",
    "wrong_fps": "Falls or travels as bodies do not: the frame rate in the file is suspect.",
    "speed_outlier": "A joint or the pelvis jumps from one frame to the next.",
    "static": "Nothing moves.",
    "upside_down": "The head is below the hips throughout: the up axis is suspect.",
    "fit_error": "Our body cannot take the source's poses.",
    "sliding": "Feet slide over the floor.",
    "floating": "The body hovers above its floor.",
    "duplicate": "The same motion as a clip that is in the dataset.",
    "reader_died": "Its reader raised, hung or crashed, at each try.",
    "name_taken": "Another file of this name is in the dataset.",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #232a36; background: #f6f7f9; margin: 0 auto;
  max-width: 1400px; padding: 24px; }
h1 { font-size: 26px; } h2 { font-size: 19px; margin-top: 36px; }
section { background: #fff; border: 1px solid #dde1e8; border-radius: 8px; padding: 14px 18px;
  margin: 14px 0; overflow-x: auto; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; }
.tile { background: #fff; border: 1px solid #dde1e8; border-radius: 8px; padding: 10px 18px; }
.tile b { display: block; font-size: 24px; } .tile span { color: #5a6475; }
.plots { display: flex; flex-wrap: wrap; gap: 8px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 4px 12px 4px 0;
  border-bottom: 1px solid #eceff3; vertical-align: top; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; } img { max-width: 100%; display: block; margin: 6px 0; }
p.note { color: #5a6475; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A clip to be drawn."""

    name: str
    text: str
    """Its caption, or why it was rejected."""
    motion: Motion


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """All that the page shows."""

    title: str
    mark: str
    """A name of the dataset as it is, kept in the page's head."""
    counts: dict[str, Any]
    """As the dataset's manifest has them."""
    fps: float
    histograms: Sequence[Histogram]
    feature_std: Sequence[float]
    """Deviations of the features, 0 for constants."""
    accepted: Sequence[Shown] = ()
    rejected: Mapping[str, Sequence[Shown]] = field(default_factory=dict)
    """By reason."""
    first_rejects: Sequence[dict[str, Any]] = ()
    """Rows with name, code, message."""
    player: str | None = None
    """Name of the page beside it that plays the accepted clips."""


def report_page(data: ReportData) -> str:
    """The page's text."""
    hours = data.counts["frames"] / data.fps / 3600
    tiles = [
        (f"{data.counts['clips']:,}", "clips"),
        (_hours(hours), "of motion"),
        (f"{data.counts['captions']:,}", "captions"),
        (f"{data.counts['rejected']:,}", "rejected"),
        (f"{data.counts['skipped']:,}", "files that are no motion"),
    ]
    parts = [
        f"<h1>{escape(data.title)}</h1>",
        '<div class="tiles">',
        *(f'<div class="tile"><b>{number}</b><span>{what}</span></div>' for number, what in tiles),
        "</div>",
        _splits(data),
        _rejects(data),
        '<h2>Numbers of the accepted clips</h2><section class="plots">',
        *(histogram_svg(histogram) for histogram in data.histograms),
        _std_plot(data.feature_std),
        '</section><p class="note">Red lines are the gates\' limits; what lies beyond was'
        " rejected. The last bin holds all larger numbers.</p>",
        _pictures(data),
        _table(data.first_rejects, data.counts["rejected"]),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="dataset" content="{escape(data.mark)}">'
        f"<title>{escape(data.title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _splits(data: ReportData) -> str:
    def rows(groups: dict[str, dict[str, int]]) -> str:
        return "".join(
            f'<tr><td>{escape(name)}</td><td class="number">{group["clips"]:,}</td>'
            f'<td class="number">{_hours(group["frames"] / data.fps / 3600)}</td></tr>'
            for name, group in groups.items()
        )

    head = '<tr><th>{}</th><th class="number">clips</th><th class="number">motion</th></tr>'
    return (
        "<h2>Splits and licences</h2><section><table>"
        + head.format("split")
        + rows(data.counts["by_split"])
        + head.format("licence")
        + rows(data.counts["by_licence"])
        + "</table></section>"
    )


def _rejects(data: ReportData) -> str:
    reasons = data.counts["rejected_by_reason"]
    if not reasons:
        return "<h2>Rejects</h2><section>None.</section>"
    bars = sorted(reasons.items(), key=lambda pair: -pair[1])
    meanings = "".join(
        f"<tr><td>{escape(code)}</td><td>{escape(REASONS.get(code, 'Its reader refused it.'))}</td>"
        "</tr>"
        for code, _ in bars
    )
    return (
        f"<h2>Rejects by reason</h2><section>{bars_svg('rejects by reason', bars)}"
        f"<table>{meanings}</table></section>"
    )


def _std_plot(std: Sequence[float]) -> str:
    counts = np.array([round(1000 * value) for value in std] or [0], dtype=np.int64)
    title = "deviation of each of the 201 features, in thousandths"
    return histogram_svg(Histogram(title, 0, len(counts), counts))


def _pictures(data: ReportData) -> str:
    player = ""
    if data.player:
        name = escape(data.player)
        player = f'<p><a href="{name}">Play these clips</a> ({name}, beside this page)</p>'
    try:
        parts = ["<h2>Accepted clips</h2><section>", player, *map(_picture, data.accepted)]
        parts.append("</section>")
        for code, shown in sorted(data.rejected.items()):
            parts.append(f"<h2>Rejected: {escape(code)}</h2><section>")
            parts += [*map(_picture, shown), "</section>"]
    except MissingDependencyError as error:
        why = f'<p class="note">No pictures: {escape(str(error))}</p>'
        return f"<h2>Accepted clips</h2><section>{player}{why}</section>"
    return "".join(parts)


def _picture(shown: Shown) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "strip.png"
        write_png([shown.motion], path, num_poses=_POSES)
        packed = base64.b64encode(path.read_bytes()).decode()
    words = escape(f"{shown.name}: {shown.text}")
    return f'<p>{words}</p><img alt="{words}" src="data:image/png;base64,{packed}">'


def _table(rows: Sequence[dict[str, Any]], total: int) -> str:
    if not rows:
        return ""
    body = "".join(
        f"<tr><td>{escape(row['name'])}</td><td>{escape(row['code'])}</td>"
        f"<td>{escape(row['message'])}</td></tr>"
        for row in rows
    )
    note = f"<p class='note'>The first {len(rows)} of {total:,}; all are in rejects/.</p>"
    return (
        "<h2>Rejects by name</h2><section><table><tr><th>file or clip</th><th>reason</th>"
        f"<th>in words</th></tr>{body}</table>{note}</section>"
    )


def _hours(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"
