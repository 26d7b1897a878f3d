"""How one network is computed by several processes. Knows no tensors and no Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hymotion_ray.config.fields import require

Way = Literal["heads", "rows", "layers"]


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """One replica over several GPUs."""

    way: Way
    """heads: tensor parallel, each holds 1/n of the weights; rows: each computes its share of a
    batch's rows, with 2 the text and the null half of guidance; layers: a pipeline over blocks."""
    size: int
    """Processes, each with a GPU of its own."""
    num_micro_batches: int = 4
    """Pieces that a batch is cut into under `layers`; more pieces wait less."""
    timeout_s: float = 60.0
    """How long a process waits for another before the replica is given up."""

    def __post_init__(self) -> None:
        require(self.way in get_args(Way), "split.way", self.way, ", ".join(get_args(Way)))
        require(2 <= self.size <= 64, "split.size", self.size, "2 to 64")
        require(
            self.num_micro_batches >= 1,
            "split.num_micro_batches",
            self.num_micro_batches,
            "at least 1",
        )
        require(self.timeout_s > 0, "split.timeout_s", self.timeout_s, "seconds above 0")
