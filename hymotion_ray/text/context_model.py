"""Context features: the language model's last hidden states for prompt and template tail.

Knows Qwen3 through transformers; imported only when such an encoder is loaded.
Shape letters: R rows, T tokens of a cell, n tokens of one text, C context width.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, Qwen3Model

from hymotion_ray.errors import TextEncoderError
from hymotion_ray.text.shapes import fill_cell, plan_calls, token_cells


class FrozenPrefix(DynamicCache):
    """Keys and values of the shared prefix, one row of them, lent to every row of every call.

    An ordinary cache keeps what it is given; this one joins it to the prefix and forgets it, so the
    prefix is computed once, never changes, and takes no memory a row beyond the layer at work.
    """

    def __init__(self, computed: DynamicCache) -> None:
        """Take over the layers of a cache that has seen the prefix alone."""
        super().__init__()
        self.layers = list(computed.layers)  # the base class reads the prefix's length here
        self._lent: list[Any] = list(computed.layers)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *unused: Any,
        **unused_options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prefix and new keys, prefix and new values: each (R, heads, prefix + T, head width)."""
        layer, rows = self._lent[layer_idx], key_states.shape[0]
        keys = layer.keys.expand(rows, -1, -1, -1)
        values = layer.values.expand(rows, -1, -1, -1)
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)


class ContextModel:
    """Runs the language model at fixed shapes behind the shared prefix."""

    def __init__(
        self, model: Qwen3Model, prefix_ids: Sequence[int], *, rows: int, max_tokens: int
    ) -> None:
        """Compute the prefix. `model` stays where it is; `rows` texts make a call."""
        self.model, self.rows = model, rows
        self.cells = token_cells(max_tokens)
        place: torch.device = next(model.get_input_embeddings().parameters()).device
        # offloaded embeddings are on "meta"; accelerate then moves inputs to where they run
        self.device = torch.device("cpu") if place.type == "meta" else place
        # transformers 5 renames the argument; both names mean the same
        named = inspect.signature(Qwen3Model.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"
        computed = DynamicCache()
        self._forward(torch.tensor([list(prefix_ids)], device=self.device), computed)
        self.prefix = FrozenPrefix(computed)

    @property
    def width(self) -> int:
        """Context width C."""
        return self.model.config.hidden_size

    def features(self, ids: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """(n, C) for each text's n token numbers, counted from the prompt's start.

        Raises `TextEncoderError` when a feature is not finite (float16 may overflow).
        """
        rows: list[torch.Tensor] = [torch.empty(0)] * len(ids)
        for cell, members in plan_calls([len(row) for row in ids], self.cells, self.rows):
            # the pad number is of no account: a causal model's valid tokens never see what follows
            filled = fill_cell([ids[i] for i in members], self.rows, cell, 0, self.device)
            hidden = self._forward(filled, self.prefix)
            for row, i in enumerate(members):
                rows[i] = hidden[row, : len(ids[i])].clone()
                if not torch.isfinite(rows[i]).all():
                    raise TextEncoderError(
                        f"the language model gave features that are not finite for text {i} of the "
                        "batch; use precision bfloat16 or float32"
                    )
        return rows

    @torch.no_grad()
    def _forward(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        options: dict[str, Any] = {self._cache_name: cache}
        return self.model(input_ids=ids, use_cache=True, **options).last_hidden_state
