"""Where and how the text encoder runs. Knows no tensors and no files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hymotion_ray.config.fields import require

RELEASED_TEMPLATE_SHA256 = "b9c55290b778c01739a337a36315c2065ef6ccfbfa0a1898b727377ed4965283"
"""Hash of the system message that the released models were trained with; not ours to copy."""

TextPrecision = Literal["auto", "float32", "bfloat16", "float16", "int8", "4bit"]


@dataclass(frozen=True, kw_only=True)
class TextPlacement:
    """Device, precision and memory limits of the language model that makes context features."""

    device: str = "cpu"
    """Where it runs: cpu, cuda, cuda:1, ...; with a memory limit, some layers live elsewhere."""
    precision: TextPrecision = "auto"
    """Number format; auto: bfloat16 on a GPU, float32 on CPU. int8 (weights
    alone, a scale an output) and 4bit (needs bitsandbytes) give other features, near the exact."""
    max_gpu_memory: str | None = None
    """GPU memory for weights, such as 10GiB; further layers stay in CPU memory. None: no limit."""
    max_cpu_memory: str | None = None
    """CPU memory for weights; layers beyond it stay on disk. None: no limit."""
    offload_folder: str | None = None
    """Folder for layers that stay on disk; needed with `max_cpu_memory`."""
    rows: int | None = None
    """Texts a call, a fixed number so that mates change no bits; None: 16 on a GPU, 1 on CPU."""

    def __post_init__(self) -> None:
        require(
            re.fullmatch(r"cpu|(cuda|xpu|mps)(:\d+)?", self.device) is not None,
            "text.device",
            self.device,
            "cpu, cuda, cuda:N, xpu or mps",
        )
        for name in ("max_gpu_memory", "max_cpu_memory"):
            value = getattr(self, name)
            require(
                value is None or re.fullmatch(r"\d+(\.\d+)?[KMGT]i?B", value) is not None,
                f"text.{name}",
                value,
                "a size such as 10GiB",
            )
        require(
            self.max_cpu_memory is None or self.offload_folder is not None,
            "text.offload_folder",
            self.offload_folder,
            "a folder, since max_cpu_memory is set",
        )
        require(self.rows is None or 1 <= self.rows <= 1024, "text.rows", self.rows, "1 to 1024")

    @property
    def offloads(self) -> bool:
        """Whether layers may live elsewhere than where they run."""
        return self.max_gpu_memory is not None or self.max_cpu_memory is not None

    @property
    def number_format(self) -> str:
        """The precision with `auto` resolved."""
        if self.precision != "auto":
            return self.precision
        return "float32" if self.device == "cpu" else "bfloat16"

    @property
    def is_approximate(self) -> bool:
        """Whether features are other ones than those of the exact weights, not rounding apart."""
        return self.precision in ("int8", "4bit")

    @property
    def batch_rows(self) -> int:
        """The rows with the default resolved."""
        return self.rows or (1 if self.device == "cpu" else 16)
