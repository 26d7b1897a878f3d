"""The condition of a batch of prompts, as the network takes it. Knows no encoder and no text.

Shape letters: P prompts, N text tokens, C context width, V vector width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hymotion_ray.errors import TextEncoderError


@dataclass(frozen=True, kw_only=True, eq=False)
class TextCondition:
    """Features of P prompts: a row of context tokens each, right padded, and one vector each."""

    context: torch.Tensor
    """(P, N, C) float: one feature a token; what lies beyond `length` is padding."""
    vector: torch.Tensor
    """(P, 1, V) float: one feature a prompt."""
    length: torch.Tensor
    """(P,) int64: valid context tokens, 0 to N."""
    truncated: tuple[bool, ...] = ()
    """Whether either encoder cut the prompt; empty: unknown, or nothing was cut."""
    context_truncated: tuple[bool, ...] = ()
    """Whether the context encoder cut the prompt."""
    vector_truncated: tuple[bool, ...] = ()
    """Whether the vector encoder cut the prompt."""

    def __post_init__(self) -> None:
        """Take numpy arrays and lists too, and whole numbers of any type."""
        for name in ("context", "vector", "length"):
            object.__setattr__(self, name, _as_tensor(getattr(self, name), name))
        num = self.context.shape[0] if self.context.ndim else 0
        if (
            self.context.ndim != 3
            or self.vector.ndim != 3
            or self.vector.shape[:2] != (num, 1)
            or self.length.shape != (num,)
        ):
            raise TextEncoderError(
                f"a text condition has context {tuple(self.context.shape)}, vector "
                f"{tuple(self.vector.shape)}, length {tuple(self.length.shape)}; allowed: context "
                "(P, N, C), vector (P, 1, V), length (P,)"
            )
        if num and not (0 <= int(self.length.min()) <= int(self.length.max()) <= self.num_tokens):
            raise TextEncoderError(
                f"text condition lengths run from {int(self.length.min())} to "
                f"{int(self.length.max())}; allowed: 0 to {self.num_tokens}, the context's tokens"
            )
        for name in ("truncated", "context_truncated", "vector_truncated"):
            if len(getattr(self, name)) not in (0, num):
                raise TextEncoderError(
                    f"text condition {name} has {len(getattr(self, name))} entries; "
                    f"allowed: none, or one a prompt ({num})"
                )
        if not self.truncated and (self.context_truncated or self.vector_truncated):
            none = (False,) * num
            pairs = zip(self.context_truncated or none, self.vector_truncated or none, strict=True)
            object.__setattr__(self, "truncated", tuple(c or v for c, v in pairs))

    def __len__(self) -> int:
        return self.context.shape[0]

    @property
    def num_tokens(self) -> int:
        """Context tokens N, padding included."""
        return self.context.shape[1]

    def truncation(self, prompt: int) -> str:
        """What was cut of one prompt, for manifests: "", "context", "vector" or both."""
        cut = []
        if self.context_truncated and self.context_truncated[prompt]:
            cut.append("context")
        if self.vector_truncated and self.vector_truncated[prompt]:
            cut.append("vector")
        return ",".join(cut)

    def row(self, prompt: int) -> TextRow:
        """Features of one prompt without padding."""
        return TextRow(
            context=self.context[prompt, : int(self.length[prompt])].clone(),
            vector=self.vector[prompt, 0].clone(),
            context_truncated=bool(self.context_truncated and self.context_truncated[prompt]),
            vector_truncated=bool(self.vector_truncated and self.vector_truncated[prompt]),
        )

    def select(self, prompts: Sequence[int]) -> TextCondition:
        """The condition of these prompts, in this order; one prompt may be named more than once."""
        index = torch.tensor(list(prompts), dtype=torch.int64, device=self.context.device)
        return TextCondition(
            context=self.context[index],
            vector=self.vector[index],
            length=self.length[index.to(self.length.device)],
            truncated=_pick(self.truncated, prompts),
            context_truncated=_pick(self.context_truncated, prompts),
            vector_truncated=_pick(self.vector_truncated, prompts),
        )

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TextCondition:
        """The same condition on `device` with features as `dtype` (None: as they are)."""
        return TextCondition(
            context=self.context.to(device=device, dtype=dtype),
            vector=self.vector.to(device=device, dtype=dtype),
            length=self.length.to(device=device),
            truncated=self.truncated,
            context_truncated=self.context_truncated,
            vector_truncated=self.vector_truncated,
        )


def _as_tensor(values: Any, name: str) -> torch.Tensor:
    """Features as a floating tensor, lengths as int64; `TextEncoderError` for anything else."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TextEncoderError(
            f"a text condition's {name} is {type(values).__name__}, no array of numbers ({error})"
        ) from error
    is_whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if name == "length" and (is_whole or not tensor.numel()):  # an empty list has no type
        return tensor.to(torch.int64)
    if name == "length" or not tensor.is_floating_point():
        allowed = "whole numbers, lengths and not masks" if name == "length" else "float numbers"
        raise TextEncoderError(f"a text condition's {name} is {tensor.dtype}; allowed: {allowed}")
    return tensor


def stack_rows(rows: Sequence[TextRow], *, device: torch.device | str = "cpu") -> TextCondition:
    """One condition of at least one prompt; shorter contexts are padded with zeros."""
    num_tokens = max((row.context.shape[0] for row in rows), default=0)
    first = rows[0]
    context = first.context.new_zeros(
        (len(rows), num_tokens, first.context.shape[1]), device=device
    )
    for i, row in enumerate(rows):
        context[i, : row.context.shape[0]] = row.context
    return TextCondition(
        context=context,
        vector=torch.stack([row.vector for row in rows])[:, None].to(device),
        length=torch.tensor(
            [row.context.shape[0] for row in rows], dtype=torch.int64, device=device
        ),
        context_truncated=tuple(row.context_truncated for row in rows),
        vector_truncated=tuple(row.vector_truncated for row in rows),
    )


def empty_condition(
    context_dim: int, vector_dim: int, *, device: torch.device | str = "cpu"
) -> TextCondition:
    """The condition of no prompts."""
    return TextCondition(
        context=torch.zeros(0, 0, context_dim, device=device),
        vector=torch.zeros(0, 1, vector_dim, device=device),
        length=torch.zeros(0, dtype=torch.int64, device=device),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TextRow:
    """Features of one prompt, without padding: what encoders make and the feature store keeps."""

    context: torch.Tensor
    """(n, C) float: one feature a valid token."""
    vector: torch.Tensor
    """(V,) float."""
    context_truncated: bool = False
    """Whether the context encoder cut the prompt."""
    vector_truncated: bool = False
    """Whether the vector encoder cut the prompt."""


def _pick(values: tuple[bool, ...], prompts: Sequence[int]) -> tuple[bool, ...]:
    return tuple(values[p] for p in prompts) if values else ()
