"""How one network is computed by several processes. Knows no tensors and no Ray."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

from hymotion_ray.config.fields import require

Way = Literal["heads", "rows", "layers"]
Offload = Literal["none", "layers"]
"""Whether weights stay on the device, or come there block by block from host memory."""


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

    def __str__(self) -> str:
        pieces = f":{self.num_micro_batches}" if self.way == "layers" else ""
        return f"{self.way}:{self.size}{pieces}"

    @classmethod
    def parse(cls, text: str) -> SplitConfig:
        """The split that `str` writes as `text`: heads:2, rows:2, or layers:4:8 with 8 pieces."""
        way, *numbers = text.split(":")
        most = 2 if way == "layers" else 1
        fits = all(re.fullmatch(r"\d{1,4}", number) for number in numbers)
        require(
            way in get_args(Way) and fits and 1 <= len(numbers) <= most,
            "split",
            text,
            "WAY:SIZE such as heads:2, rows:2 or layers:4, or layers:SIZE:PIECES",
        )
        size, *pieces = map(int, numbers)
        given = {"num_micro_batches": pieces[0]} if pieces else {}
        return cls(way=cast("Way", way), size=size, **given)

    def fitting_rows(self, rows: int) -> int:
        """The least number of clips a batch, from `rows` on, that can be shared out evenly."""
        return -(-rows // self.size) * self.size if self.way == "rows" else rows
