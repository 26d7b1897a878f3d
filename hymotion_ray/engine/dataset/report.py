"""How an ingest ended: counts over its sources, in words, as JSON and as an exit code. Ray-free."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hymotion_ray.engine.dataset.catalogue import Catalogue
from hymotion_ray.engine.dataset.listing import FileList
from hymotion_ray.engine.progress import duration_words


@dataclass
class IngestReport:
    """How an ingest ended; what summary.json holds. Counts are those of this run's sources."""

    out: str
    files: int = 0
    """Files of the sources, those that are no motion included."""
    files_read: int = 0
    """Files that this run read."""
    files_done: int = 0
    """Files that an earlier run had read."""
    accepted: int = 0
    """Clips of these files in the dataset."""
    rejected: int = 0
    """Files, clips and pieces of clips that are not."""
    rejected_by_reason: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    """Things that never claimed to be motion."""
    captions: dict[str, Any] = field(default_factory=dict)
    """Caption files that were read, and what their rows were."""
    dataset: dict[str, Any] = field(default_factory=dict)
    """The manifest's counts: all that the folder holds."""
    seconds: float = 0.0
    clips_per_s: float = 0.0
    page: str | None = None
    stopped: str | None = None
    """Why the job stopped before its end."""

    @property
    def exit_code(self) -> int:
        """0 all accepted, 1 some rejected, 2 every one rejected, 3 stopped."""
        if self.stopped:
            return 3
        if self.rejected:
            return 1 if self.accepted else 2
        return 0

    def words(self) -> str:
        """What the user reads at the end."""
        if not self.accepted and not self.rejected and not self.stopped:
            return f"warning: the sources hold no motion ({self.files} files); 0 accepted"
        lines = [
            f"{self.accepted} clips accepted, {self.rejected} rejected, of {self.files} files"
            f" ({self.files_done} read before), in {duration_words(self.seconds)}"
        ]
        if self.rejected_by_reason:
            reasons = sorted(self.rejected_by_reason.items(), key=lambda pair: -pair[1])
            lines.append("rejected: " + ", ".join(f"{code} {count}" for code, count in reasons))
        if self.skipped:
            lines.append(f"no motion, skipped: {self.skipped}")
        if self.stopped:
            lines.append(f"stopped: {self.stopped}")
        return "\n".join([*lines, self.page or self.out])

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "accepted": self.accepted,
            "rejected": self.rejected,
            "rejected_by_reason": self.rejected_by_reason,
            "skipped": self.skipped,
            "files": self.files,
            "files_read": self.files_read,
            "files_done": self.files_done,
            "captions": self.captions,
            "dataset": self.dataset,
            "seconds": round(self.seconds, 3),
            "clips_per_s": round(self.clips_per_s, 3),
            "out": self.out,
            "page": self.page,
            "stopped": self.stopped,
            "exit_code": self.exit_code,
        }


def count_sources(files: FileList, catalogue: Catalogue, report: IngestReport) -> None:
    """Counts over this run's sources, whichever run read them."""
    reasons: Counter[str] = Counter()
    report.files, report.files_done = files.counts.files, files.counts.done
    for key, *_ in files.listed():
        report.accepted += catalogue.num_accepted(key)
        for code, is_motion in catalogue.reasons(key):
            reasons[code] += is_motion
            report.skipped += not is_motion
    report.rejected = reasons.total()
    report.rejected_by_reason = {code: n for code, n in sorted(reasons.items()) if n}
