"""The text half of the sampler's work: computed once per prompt and time, then looked up.

Text never sees motion, so it is computed ahead, for a window of times in one go, in calls of one
fixed number of rows (a row's bits must not depend on how many others there are). The learned null
text is one token repeated, whatever the prompt's length, so its text half depends on the time
alone: it is computed once per time and kept across calls.

A branch is what a motion row attends to: a prompt, or the null text that goes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hymotion_ray.flow.conditions import Conditions, null_condition
from hymotion_ray.flow.network import Network, TextRows
from hymotion_ray.flow.upload import upload
from hymotion_ray.flow.work import Work

TextInputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""context (T, N, C), vector (T, 1, V), t (T,) and context length (T,) of one call."""

NullKind = Literal["none", "null_text", "own_context"]
"""No null branch; the learned null text; or the prompt's own context under the null vector."""


def null_branches(prompts: Tensor, num_prompts: int, null: NullKind) -> Tensor:
    """The null branch of each of `prompts` (int64 places among `num_prompts`)."""
    if null == "own_context":
        return prompts + num_prompts
    return torch.full_like(prompts, num_prompts)


def count_branches(num_prompts: int, null: NullKind) -> int:
    """Text rows a time: one a prompt, then the null branches'."""
    return num_prompts + {"none": 0, "null_text": 1, "own_context": num_prompts}[null]


@dataclass(frozen=True)
class TextWindow:
    """Text rows of all branches at several times, one time after another."""

    rows: TextRows
    first: dict[float, int]
    """Where each time's rows begin."""

    def places(self, t: float, branches: Tensor) -> Tensor:
        """Where the rows of `branches` (int64, on the network's device) at time t stand."""
        return self.first[t] + branches


class TextHalf:
    """Computes windows of text rows for one network and one learned null text."""

    def __init__(
        self,
        network: Network,
        null_vector: Tensor,
        null_context: Tensor,
        rows_per_call: int,
        null_cache_bytes: int,
        work: Work,
    ) -> None:
        self.network = network
        self.null = null_condition(null_vector, null_context, network)
        self.rows_per_call = rows_per_call
        self.null_cache_bytes = null_cache_bytes
        self.work = work
        self._null_rows: dict[float, TextRows] = {}
        self._room: tuple[int, TextRows] | None = None

    def window(
        self,
        conditions: Conditions,
        times: Sequence[float],
        null: NullKind,
        previous: TextWindow | None,
    ) -> TextWindow:
        """Text rows of all branches at `times`; what `previous` holds of them is taken over.

        Windows share their memory: `previous` is not to be used any more.
        """
        num_branches = count_branches(len(conditions), null)
        if null == "own_context":
            conditions = conditions.with_null_vectors(self.null.vector)
        first = {t: i * num_branches for i, t in enumerate(times)}
        new = [t for t in times if previous is None or t not in previous.first]
        num_tokens = conditions.context.shape[1]
        every = self._index(range(num_branches))
        kept = {}
        if previous is not None:
            for t in first.keys() - set(new):
                kept[t] = previous.rows.rows(previous.places(t, every))
        rows = self._rows(len(times) * num_branches, num_tokens)

        pairs = [(t, p) for t in new for p in range(len(conditions))]
        for start in range(0, len(pairs), self.rows_per_call):
            part = pairs[start : start + self.rows_per_call]
            self.write(rows, [first[t] + p for t, p in part], self._inputs(conditions, part))
        if null == "null_text":
            for t, one_token in self.null_at(new).items():
                where = self._index([first[t] + num_branches - 1])
                rows.write(where, self.network.repeat_token(one_token, num_tokens))
        for t, held in kept.items():
            rows.write(first[t] + every, held)
        return TextWindow(rows, first)

    def _rows(self, number: int, num_tokens: int) -> TextRows:
        """Room for `number` rows: the last window's where it suffices, else new."""
        if self._room is not None:
            tokens, rows = self._room
            if tokens == num_tokens and len(rows) >= number:
                return rows
            # Gone before the new one comes, or both would stand in memory at once.
            self._room = None
            del rows
        self._room = num_tokens, self.network.empty_text_rows(number, num_tokens)
        return self._room[1]

    def _inputs(self, conditions: Conditions, pairs: Sequence[tuple[float, int]]) -> TextInputs:
        """Of exactly `rows_per_call` rows: `pairs`, the first one repeated after them."""
        full = [*pairs, *[pairs[0]] * (self.rows_per_call - len(pairs))]
        t = upload([t for t, _ in full], torch.float32, self.network.device)
        place = self._index([p for _, p in full])
        return conditions.context[place], conditions.vector[place], t, conditions.length[place]

    def write(self, rows: TextRows, places: Sequence[int], inputs: TextInputs) -> None:
        """One call of the network: as many rows of its result as there are `places` go there.

        The rows of `inputs` past those repeat the first one.
        """
        self.work.count_text(*inputs[0].shape[:2])
        into = getattr(self.network, "text_stream_into", None)
        if into is None:
            rows.write(self._index(places), self.network.text_stream(*inputs))
        else:
            missing = len(inputs[0]) - len(places)
            into(rows, self._index([*places, *[places[0]] * missing]), *inputs)

    def null_at(self, times: Sequence[float]) -> dict[float, TextRows]:
        """The null text's single token at each of `times`, computed where it is not kept."""
        missing = [t for t in times if t not in self._null_rows]
        for start in range(0, len(missing), self.rows_per_call):
            part = missing[start : start + self.rows_per_call]
            inputs = self._inputs(self.null, [(t, 0) for t in part])
            self.work.count_text(*inputs[0].shape[:2])
            computed = self.network.text_stream(*inputs)
            for i, t in enumerate(part):
                self._null_rows[t] = computed.rows(self._index([i]))
        wanted = {t: self._null_rows[t] for t in times}
        size = sum(rows.num_bytes for rows in self._null_rows.values())
        while size > self.null_cache_bytes:
            size -= self._null_rows.pop(next(iter(self._null_rows))).num_bytes
        return wanted

    def _index(self, places: Sequence[int]) -> Tensor:
        return upload(places, torch.int64, self.network.device)
