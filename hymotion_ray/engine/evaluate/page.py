"""The page of an evaluation: tables and plots in one file that asks the network for nothing.

Knows how it looks; the numbers come from the report and the tallies. Ray-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from hymotion_ray.engine.evaluate.report import UNITS, EvaluateReport, percent
from hymotion_ray.engine.evaluate.tally import Tally
from hymotion_ray.formats.svg_plots import Histogram, bars_svg, histogram_svg
from hymotion_ray.motion.metrics_actions import ACTIONS

_PLOTTED = ("skate", "skate_speed", "slide", "float", "jitter", "dynamic_mm", "seam", "overlap")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #232a36; background: #f6f7f9; margin: 0 auto;
  max-width: 1200px; padding: 24px; }
h1 { font-size: 25px; } h2 { font-size: 19px; margin-top: 34px; }
section { background: #fff; border: 1px solid #dde1e8; border-radius: 8px; padding: 14px 18px;
  overflow-x: auto; }
.plots { display: flex; flex-wrap: wrap; gap: 8px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid #eceff3; }
th:first-child, td:first-child, td.words, th.words { text-align: left; overflow-wrap: anywhere; }
p.note { color: #5a6475; }
"""


def report_page(report: EvaluateReport, tally: Tally) -> str:
    """The page's text; `tally` is the source's own, closed."""
    title = f"Evaluation of {report.source['path']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{report.num_clips:,} clips measured, {report.num_rejected:,} rejected,"
        f" {report.num_failed:,} not rendered.</p>",
        _actions(report.actions()),
        _metrics(report),
        '<h2>Spread over the clips</h2><section class="plots">',
        *_plots(tally),
        "</section>",
        _distances(report),
        _rejects(report),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(part for part in parts if part)
        + "</body></html>\n"
    )


def _actions(actions: dict[str, Any] | None) -> str:
    if actions is None:
        return ""
    bars = bars_svg(
        "clips that pass, in percent",
        [(name, round(100 * (share or 0))) for name, share in actions["by_action"].items()],
        unit=" %",
    )
    rows = [
        [
            row["prompt"],
            row["action"],
            str(row["num"]),
            *(percent(row[key]) for key in ("share", "chance", "nearest")),
            row["nearest_caption"] or "",
        ]
        for row in actions["prompts"]
    ]
    rows.append(
        ["mean", "", "", *(percent(actions[f"mean{k}"]) for k in ("", "_chance", "_nearest")), ""]
    )
    head = ["prompt", "test", "clips", "pass", "chance", "nearest real clip", "its caption"]
    tests = [[name, ACTIONS[name][0]] for name in actions["by_action"]]
    return (
        "<h2>Does a clip do what its prompt says?</h2>"
        f"<section>{bars}{_table(head, rows)}</section>"
        '<p class="note">Chance: how often clips of the other actions\' prompts pass the same test.'
        " Nearest real clip: the reference's clips whose caption is nearest to the prompt.</p>"
        f"<section>{_table(['test', 'a clip passes when it'], tests, words=(1,))}</section>"
    )


def _metrics(report: EvaluateReport) -> str:
    real = (report.reference or {}).get("metrics", {})
    rows = [
        [
            name,
            *(f"{held[key]:.4g}" for key in ("mean", "median", "p5", "p95")),
            f"{real[name]['mean']:.4g}" if name in real else "",
            UNITS.get(name, ""),
        ]
        for name, held in report.metrics.items()
    ]
    head = ["measure", "mean", "median", "5 %", "95 %", "reference's mean", "unit"]
    return f"<h2>How well clips move</h2><section>{_table(head, rows)}</section>"


def _plots(tally: Tally) -> list[str]:
    plots = []
    for name in _PLOTTED:
        values = tally.column(name)
        if len(values):
            high = float(np.percentile(values, 99)) or 1.0
            histogram = Histogram.empty(f"{name} ({UNITS[name]})", 0.0, high)
            histogram.add(values)
            plots.append(histogram_svg(histogram))
    return plots


def _distances(report: EvaluateReport) -> str:
    rows = [[name, f"{value:.4g}", ""] for name, value in report.distances.items()]
    for name, value in (report.embedding or {}).items():
        if isinstance(value, dict):
            rows.append([name, f"{value['mean']:.4g}", f"± {value['ci95']:.2g}"])
        elif isinstance(value, float):
            rows.append([name, f"{value:.4g}", ""])
    if not rows:
        return ""
    by = f", by the embedder {report.embedding['embedder']}" if report.embedding else ""
    head = ["measure", "value", "95 %"]
    return f"<h2>Sets of clips{escape(by)}</h2><section>{_table(head, rows)}</section>"


def _rejects(report: EvaluateReport) -> str:
    if not report.first_rejects:
        return ""
    rows = [[r["name"], r["code"], r["message"]] for r in report.first_rejects]
    note = f"The first {len(rows)} of {report.num_rejected:,}; all are in rejects.jsonl."
    table = _table(["clip", "reason", "in words"], rows, words=(1, 2))
    return f'<h2>Rejects</h2><section>{table}</section><p class="note">{note}</p>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = ()) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=words' if k in words else ''}>{escape(cell)}</{tag}>"
            for k, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{line(head, 'th')}</tr>{body}</table>"
