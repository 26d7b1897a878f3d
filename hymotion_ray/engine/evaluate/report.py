"""What an evaluation found: as JSON, as words, and the exit code. Ray-free; draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hymotion_ray import __version__
from hymotion_ray.engine.evaluate.judgement import Judged
from hymotion_ray.engine.progress import duration_words
from hymotion_ray.motion.metrics_actions import ACTIONS

REPORT_SCHEMA_VERSION = 1
UNITS = {
    "skate": "share of frames",
    "skate_speed": "m/s",
    "skate_contact": "share of contact",
    "slide": "mm a frame at 20 fps",
    "float": "share of frames",
    "unsupported": "share of frames",
    "jitter": "10 m/s³",
    "jitter_mm": "mm at 20 fps",
    "dynamic_mm": "mm at 20 fps",
    "penetration": "m",
    "hover": "m",
    "facing": "cosine",
    "bone_change": "share of length",
    "limit_excess": "degrees",
    "overlap": "share of frames",
    "speed_peak": "m/s",
    "acceleration_peak": "m/s²",
    "static": "share of frames",
    "loop_gap": "m",
    "seam": "mm at 20 fps",
    "sliding_against_truth": "m a frame",
    "position_error": "m",
}
_SCORED = ("walk", "run", "jump", "kick", "punch", "wave", "sit", "dance")


@dataclass
class EvaluateReport:
    """All that was found."""

    source: dict[str, Any]
    num_clips: int = 0
    num_rejected: int = 0
    rejects: dict[str, int] = field(default_factory=dict)
    """Number of rejects by code."""
    first_rejects: list[dict[str, str]] = field(default_factory=list)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    reference: dict[str, Any] | None = None
    distances: dict[str, float] = field(default_factory=dict)
    embedding: dict[str, Any] | None = None
    judged: Sequence[Judged] = ()
    model: dict[str, Any] | None = None
    """What was rendered first, where the path is a model."""
    num_failed: int = 0
    """Prompts and clips that could not be rendered."""
    seconds: float = 0.0
    out: str | None = None

    @property
    def exit_code(self) -> int:
        """0 all measured, 1 some rejected or not rendered, 2 none measured."""
        if not self.num_clips:
            return 2
        return 1 if self.num_rejected or self.num_failed else 0

    def actions(self) -> dict[str, Any] | None:
        """The judgement, as JSON has it; None where no clip belongs to a test prompt."""
        rows: list[dict[str, Any]] = [
            {
                "prompt": own.prompt.text,
                "action": own.prompt.action,
                "num": own.num_clips,
                "share": own.share,
                "chance": own.chance,
                "nearest": own.nearest,
                "nearest_caption": own.nearest_caption or None,
            }
            for own in self.judged
            if own.num_clips
        ]
        if not rows:
            return None
        by_action = {
            action: _mean([row["share"] for row in rows if row["action"] == action])
            for action in dict.fromkeys(row["action"] for row in rows)
        }
        return {
            "prompts": rows,
            "by_action": by_action,
            "mean": _mean([row["share"] for row in rows]),
            "mean_chance": _mean([row["chance"] for row in rows]),
            "mean_nearest": _mean([row["nearest"] for row in rows]),
            "failing": [row["prompt"] for row in rows if (row["share"] or 0) < 0.5],
            "not_judged": [name for name in _SCORED if name not in by_action],
        }

    def to_mapping(self) -> dict[str, Any]:
        """The report as one JSON document."""
        return {
            "schema_version": REPORT_SCHEMA_VERSION,
            "version": __version__,
            "source": self.source,
            "model": self.model,
            "num_clips": self.num_clips,
            "num_rejected": self.num_rejected,
            "num_not_rendered": self.num_failed,
            "rejects_by_code": self.rejects,
            "first_rejects": self.first_rejects,
            "metrics": self.metrics,
            "reference": self.reference,
            "distances": self.distances,
            "embedding": self.embedding,
            "actions": self.actions(),
            "seconds": round(self.seconds, 2),
            "out": self.out,
            "exit_code": self.exit_code,
        }

    def words(self) -> str:
        """What the user reads."""
        parts = [
            f"{self.num_clips} clips of {self.source['path']} measured in"
            f" {duration_words(self.seconds)}, {self.num_rejected} rejected"
        ]
        parts += [f"  {code}: {num}" for code, num in sorted(self.rejects.items())]
        for reject in self.first_rejects[:10]:
            parts.append(f"  {reject['name']}: {reject['message']}")
        if self.metrics:
            parts += ["", *self._metric_lines()]
        if self.distances:
            parts += ["", *(f"{name} {value:.4g}" for name, value in self.distances.items())]
        if self.embedding:
            parts += ["", *_embedding_lines(self.embedding)]
        if actions := self.actions():
            parts += ["", *_action_lines(actions)]
        if self.out:
            parts += ["", f"{self.out}/report.html"]
        return "\n".join(parts)

    def _metric_lines(self) -> list[str]:
        real = (self.reference or {}).get("metrics", {})
        rows = [("measure", "mean", "median", "5 %", "95 %", *(("reference",) if real else ()), "")]
        for name, held in self.metrics.items():
            numbers = [f"{held[key]:.4g}" for key in ("mean", "median", "p5", "p95")]
            beside = [f"{real[name]['mean']:.4g}" if name in real else "-"] if real else []
            rows.append((name, *numbers, *beside, UNITS.get(name, "")))
        return table_lines(rows)


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of even columns: the first and last to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        middle = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *middle, row[-1]]).rstrip())
    return lines


def _embedding_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"by the embedder {found['embedder']}, {found['num_sampled']} clips sampled:"]
    for name, value in found.items():
        if isinstance(value, dict):
            lines.append(f"{name} {value['mean']:.4g} ± {value['ci95']:.2g}")
        elif isinstance(value, float):
            lines.append(f"{name} {value:.4g}")
    return lines


def _action_lines(actions: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("prompt", "clips", "pass", "chance", "nearest real", "action")]
    for row in actions["prompts"]:
        shares = [percent(row[key]) for key in ("share", "chance", "nearest")]
        rows.append((row["prompt"], str(row["num"]), *shares, row["action"]))
    means = [percent(actions[key]) for key in ("mean", "mean_chance", "mean_nearest")]
    rows.append(("mean", "", *means, ""))
    lines = table_lines(rows)
    lines += ["", "an action's clip passes when it"]
    lines += [f"  {name}: {ACTIONS[name][0]}" for name in actions["by_action"]]
    if actions["failing"]:
        lines += ["", "prompts that fail more often than not: " + "; ".join(actions["failing"])]
    return lines


def percent(share: float | None) -> str:
    """A share as people read it; `-` for none."""
    return "-" if share is None else f"{share:.0%}"


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
