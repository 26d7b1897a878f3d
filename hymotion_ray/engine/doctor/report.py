"""The doctor's findings as one table, as JSON and as an exit code. Ray-free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hymotion_ray.engine.doctor.findings import Finding, Level
from hymotion_ray.engine.progress import duration_words

_ORDER: dict[Level, int] = {"failure": 0, "warning": 1, "ok": 2}
_CODES: dict[Level, int] = {"failure": 3, "warning": 1, "ok": 0}


@dataclass
class DoctorReport:
    """All findings of a check."""

    num_nodes: int
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def level(self) -> Level:
        """The worst of all."""
        return min((f.level for f in self.findings), key=_ORDER.__getitem__, default="ok")

    @property
    def exit_code(self) -> int:
        """0 all well, 1 warnings, 3 what would break a job."""
        return _CODES[self.level]

    def to_mapping(self) -> dict[str, Any]:
        """The report as one JSON document."""
        return {
            "schema_version": 1,
            "num_nodes": self.num_nodes,
            "level": self.level,
            "findings": [f.to_mapping() for f in sorted_findings(self.findings)],
            "seconds": round(self.seconds, 2),
            "exit_code": self.exit_code,
        }

    def words(self) -> str:
        """One table, the worst first; what is well alike on several nodes is one line."""
        rows = [("", "check", "node", "found")]
        advice: dict[str, list[str]] = defaultdict(list)
        for finding in _folded(self.findings):
            rows.append((finding.level, finding.check, finding.node, finding.found))
            if finding.advice:
                advice[finding.advice].append(f"{finding.check} of {finding.node}")
        widths = [max(len(row[k]) for row in rows) for k in range(3)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
            for row in rows
        ]
        if advice:
            lines += ["", "What to do:"]
            lines += [f"- {what} ({_some(where)})" for what, where in advice.items()]
        counts = [sum(f.level == level for f in self.findings) for level in _ORDER]
        lines += [
            "",
            f"{self.num_nodes} nodes in {duration_words(self.seconds)}: {counts[0]} failures,"
            f" {counts[1]} warnings",
        ]
        return "\n".join(lines)


def _some(words: Sequence[str]) -> str:
    rest = len(words) - 4
    return "; ".join(words[:4]) + (f" and {rest} more" if rest > 0 else "")


def sorted_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first, then by check and node."""
    return sorted(findings, key=lambda f: (_ORDER[f.level], f.check, f.node))


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """Findings that say the same of several nodes as one."""
    groups: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for finding in sorted_findings(findings):
        is_well = finding.level == "ok"
        said = () if is_well and finding.check != "network" else (finding.found,)
        key = (finding.level, finding.check, finding.advice, *said)
        groups[key if is_well else (*key, finding.node)].append(finding)
    folded = []
    for group in groups.values():
        first = group[0]
        many = len(group) > 1
        folded.append(
            Finding(
                node=f"{len(group)} nodes" if many else first.node,
                check=first.check,
                level=first.level,
                found=first.found + (", ..." if len({f.found for f in group}) > 1 else ""),
                advice=first.advice,
            )
        )
    return folded
