"""Vector features: CLIP's pooled text output, without projection. Knows CLIP through transformers.

Imported only when such an encoder is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import CLIPTextModel

from hymotion_ray.text.chat_tokens import control_tokens
from hymotion_ray.text.encoder import clean_text, neutralise
from hymotion_ray.text.local_model import read_tokenizer
from hymotion_ray.text.shapes import fill_cell, plan_calls, token_cells


class VectorModel:
    """Runs the CLIP text model at fixed shapes; one vector a text."""

    def __init__(self, folder: Path, model: CLIPTextModel, *, rows: int, max_tokens: int) -> None:
        """Read the tokenizer of `folder`; `TextEncoderError` when it is missing or damaged."""
        self._tokenizer = read_tokenizer(folder, "CLIP")
        positions = model.config.max_position_embeddings
        self.model, self.rows = model, rows
        self.max_tokens = min(max_tokens, positions)
        self._control = control_tokens(self._tokenizer)
        self._end = self._tokenizer.eos_token_id

    @property
    def width(self) -> int:
        """Vector width V."""
        return self.model.config.hidden_size

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of each text with start and end token, uncut."""
        clean = [neutralise(clean_text(text), self._control) for text in texts]
        return self._tokenizer(clean, truncation=False)["input_ids"] if clean else []

    @torch.no_grad()
    def features(self, ids: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """(V,) float32 for each text's token numbers; what is too long keeps its end token."""
        kept = [self._cut(row) for row in ids]
        vectors: list[torch.Tensor] = [torch.empty(0)] * len(kept)
        cells = token_cells(self.max_tokens)
        for cell, members in plan_calls([len(row) for row in kept], cells, self.rows):
            # padded with the end token: pooling takes the first one
            filled = fill_cell(
                [kept[i] for i in members], self.rows, cell, self._end, self.model.device
            )
            pooled = self.model(input_ids=filled).pooler_output
            for row, i in enumerate(members):
                vectors[i] = pooled[row].float().clone()
        return vectors

    def _cut(self, ids: Sequence[int]) -> list[int]:
        if len(ids) <= self.max_tokens:
            return list(ids)
        return [*ids[: self.max_tokens - 1], self._end]
