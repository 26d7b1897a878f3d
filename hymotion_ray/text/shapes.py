"""Fixed shapes of encoder calls, so that a text's bits depend on the text alone. Knows no model.

A kernel's rounding may depend on the shape it runs at, but not on what other rows hold. So every
call has the same number of rows, and a number of tokens that follows from a text's own length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


def token_cells(max_tokens: int) -> list[int]:
    """Token counts that calls are padded to: multiples of 16, and `max_tokens` itself."""
    return [*range(16, max_tokens, 16), max_tokens]


def plan_calls(
    lengths: Sequence[int], cells: Sequence[int], rows: int
) -> Iterator[tuple[int, list[int]]]:
    """Group texts of `lengths` tokens into calls: yields (tokens of a cell, at most `rows` texts).

    Texts are numbered as in `lengths`; every one is in one call. Short cells come first.
    """
    grouped: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        cell = next(c for c in cells if length <= c)
        grouped.setdefault(cell, []).append(index)
    for cell in sorted(grouped):
        members = grouped[cell]
        for start in range(0, len(members), rows):
            yield cell, members[start : start + rows]


def fill_cell(
    ids: Sequence[Sequence[int]], rows: int, tokens: int, pad: int, device: torch.device
) -> torch.Tensor:
    """(rows, tokens) int64 token numbers, right padded; unused rows hold padding only."""
    filled = torch.full((rows, tokens), pad, dtype=torch.int64)
    for i, row in enumerate(ids):
        filled[i, : len(row)] = torch.tensor(row)
    return filled.to(device)
