"""How a render job ended: what the user reads, and what summary.json holds. Ray-free."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from hymotion_ray.engine.progress import duration_words
from hymotion_ray.engine.render.plan import PlanCounts
from hymotion_ray.planning.carried import Expected, words_beside

_INTERRUPTED = 130


@dataclass
class JobReport:
    """Counts, times and the reason of an early end."""

    out: str
    counts: PlanCounts = field(default_factory=PlanCounts)
    done: int = 0
    """Clips that this run rendered or gave further formats."""
    failed: int = 0
    seconds: float = 0.0
    by_device: dict[str, int] = field(default_factory=dict)
    precision: dict[str, str] = field(default_factory=dict)
    """By device, the number format of the network and why it was taken."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that processes spent in each stage."""
    mishaps: dict[str, int] = field(default_factory=dict)
    """Processes that were killed, hung, or lost with their node."""
    busy: dict[str, float] = field(default_factory=dict)
    """Share of their time that the processes of each step had work at hand."""
    gpu_seconds: dict[str, float] = field(default_factory=dict)
    """GPU time by kind, shares of GPUs counted as such."""
    cost: float | None = None
    """Price of the GPU time, where prices are known."""
    expected: Expected | None = None
    """What was expected of the run before it began."""
    planned: dict[str, Any] | None = None
    """Predicted beside actual time, memory and cost (`planning.carried`)."""
    page: str | None = None
    stopped: str | None = None
    """Why the job stopped before its end."""
    interrupted: bool = False
    """Whether the user stopped it."""

    @property
    def exit_code(self) -> int:
        """0 all done, 1 some failed or were rejected, 2 nothing to start with, 3 stopped."""
        if self.interrupted:
            return _INTERRUPTED
        if self.stopped:
            return 3
        if self.counts.prompts == 0:
            return 2 if self.counts.rejected else 0
        return 1 if self.failed or self.counts.rejected else 0

    def words(self) -> str:
        """What the user reads at the end."""
        if self.interrupted:
            return (
                f"interrupted; {self.done} clips rendered in this run are safe, the same command"
                " goes on from there"
            )
        if self.counts.prompts == 0:
            return (
                f"no prompt can be rendered: {self.counts.rejected} rejected"
                if self.counts.rejected
                else "warning: the input holds no prompts; 0 clips asked, 0 done"
            )
        lines = [
            f"{self.done} clips rendered, {self.counts.done} done before, {self.failed} failed,"
            f" {self.counts.rejected} prompts rejected, in {duration_words(self.seconds)}"
        ]
        if self.planned is not None:
            lines.append(words_beside(self.planned))
        if self.stopped:
            lines.append(f"stopped: {self.stopped}")
        return "\n".join([*lines, self.page or self.out])

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        counts = asdict(self.counts)
        for name in ("first_rejects", "first_keys", "frames"):
            counts.pop(name)
        return {
            "asked": counts.pop("asked"),
            "done": self.done + counts["done"],
            "rendered": self.done,
            "reused": counts.pop("done"),
            "failed": self.failed,
            **counts,
            "seconds": round(self.seconds, 3),
            "clips_per_s": round(self.done / self.seconds, 3) if self.seconds else 0.0,
            "by_device": self.by_device,
            "precision": self.precision,
            "stage_seconds": {name: round(s, 3) for name, s in self.stage_seconds.items()},
            "busy": {name: round(share, 3) for name, share in self.busy.items()},
            "gpu_seconds": {kind: round(s, 1) for kind, s in self.gpu_seconds.items()},
            "cost": None if self.cost is None else round(self.cost, 2),
            "planned": self.planned,
            "processes": self.mishaps,
            "out": self.out,
            "page": self.page,
            "stopped": self.stopped,
            "exit_code": self.exit_code,
        }
