"""Text rows of clips that stand at different steps: computed shortly before use, looked up by time.

Unlike a window (`text_window.py`), which serves clips that go through the steps together, a shelf
holds any pairs of prompt and time. Calls keep their one fixed number of rows; what a call has room
for is filled with the rows that the next steps will want.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch

from hymotion_ray.flow.conditions import Conditions
from hymotion_ray.flow.network import TextRows
from hymotion_ray.flow.text_window import TextHalf, TextInputs
from hymotion_ray.flow.upload import upload

_Key = tuple[Hashable, float]
NULL: Hashable = ("the learned null text",)
MAX_SPARE = 2
"""Shelves kept: each holds a gigabyte for 64 rows of the full-size model at 32 tokens."""


@dataclass(frozen=True)
class Branch:
    """What a motion row attends to, by name: clips of one name share its text rows."""

    name: Hashable
    """Name of the prompt, `NULL` for the learned null text."""
    condition: Conditions | None
    """One prompt of the shelf's token count; None for the null text."""


class TextShelf:
    """Room for `capacity` text rows of one token count."""

    def __init__(self, text: TextHalf, num_tokens: int, capacity: int) -> None:
        self._text, self._num_tokens = text, num_tokens
        self.rows: TextRows = text.network.empty_text_rows(capacity, num_tokens)
        self._place: dict[_Key, int] = {}
        self._free = list(range(capacity))

    def clear(self) -> None:
        """Forget every row."""
        self._free += self._place.values()
        self._place.clear()

    def places(
        self, now: Sequence[tuple[Branch, float]], ahead: Iterable[tuple[Branch, float]]
    ) -> list[int]:
        """Where the rows of `now` stand, computed as far as they are not held.

        `ahead`: what will be wanted next, the soonest first. What stands in neither may go.
        """
        wanted = {(branch.name, t): branch for branch, t in now}
        missing = [key for key in wanted if key not in self._place]
        if missing:
            self._compute(wanted, missing, ahead)
        return [self._place[branch.name, t] for branch, t in now]

    def _compute(
        self,
        wanted: dict[_Key, Branch],
        missing: list[_Key],
        ahead: Iterable[tuple[Branch, float]],
    ) -> None:
        nulls = [key for key in missing if key[0] == NULL]
        texts = [key for key in missing if key[0] != NULL]
        spare = -len(texts) % self._text.rows_per_call
        kept = set(wanted)
        for branch, t in ahead:
            key = (branch.name, t)
            if key[0] == NULL or key in kept:
                continue
            kept.add(key)
            if spare and key not in self._place:
                wanted[key] = branch
                texts.append(key)
                spare -= 1
        self._make_room(len(nulls) + len(texts), kept, set(wanted))
        for start in range(0, len(texts), self._text.rows_per_call):
            part = texts[start : start + self._text.rows_per_call]
            inputs = self._inputs([(wanted[key], key[1]) for key in part])
            self._text.write(self.rows, self._take(part), inputs)
        for t, one_token in self._text.null_at([t for _, t in nulls]).items():
            row = self._text.network.repeat_token(one_token, self._num_tokens)
            place = upload(self._take([(NULL, t)]), torch.int64, self._text.network.device)
            self.rows.write(place, row)

    def _make_room(self, number: int, kept: set[_Key], needed: set[_Key]) -> None:
        """Free places: first of rows that nobody will want soon, then of rows not wanted now."""
        for keep in (kept, needed):
            for key in [k for k in self._place if k not in keep]:
                if len(self._free) >= number:
                    return
                self._free.append(self._place.pop(key))
        assert len(self._free) >= number, "the shelf is smaller than one step's rows"

    def _take(self, keys: Sequence[_Key]) -> list[int]:
        for key in keys:
            self._place[key] = self._free.pop()
        return [self._place[key] for key in keys]

    def _inputs(self, pairs: Sequence[tuple[Branch, float]]) -> TextInputs:
        """Of exactly `rows_per_call` rows: `pairs`, the first one repeated after them."""
        full = [*pairs, *[pairs[0]] * (self._text.rows_per_call - len(pairs))]
        conditions = [branch.condition for branch, _ in full]
        assert None not in conditions
        held = [c for c in conditions if c is not None]
        times = upload([t for _, t in full], torch.float32, self._text.network.device)
        return (
            torch.cat([c.context for c in held]),
            torch.cat([c.vector for c in held]),
            times,
            torch.cat([c.length for c in held]),
        )


class SpareShelves:
    """Shelves of batches that have ended, for the next ones of their shape.

    Captured steps read a shelf where it lies: a new one would have them all captured again.
    """

    def __init__(self, text: TextHalf) -> None:
        self._text = text
        self._spare: OrderedDict[Hashable, TextShelf] = OrderedDict()

    def take(self, shape: Hashable, num_tokens: int, capacity: int) -> TextShelf:
        """An empty shelf; `shape` is all that says which captured steps read it."""
        shelf = self._spare.pop(shape, None)
        if shelf is None:
            return TextShelf(self._text, num_tokens, capacity)
        shelf.clear()
        return shelf

    def give(self, shape: Hashable, shelf: TextShelf) -> None:
        """Keep a shelf that nobody reads any more."""
        self._spare[shape] = shelf
        if len(self._spare) > MAX_SPARE:
            self._spare.popitem(last=False)

    def clear(self) -> None:
        """Hand their memory back."""
        self._spare.clear()
