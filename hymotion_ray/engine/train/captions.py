"""Captions' features as training reads them: from the feature store, with a few in memory.

Knows the store and which encoder made its rows. Encodes nothing: `encode.py` does, before training.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from hymotion_ray.errors import InputError
from hymotion_ray.text.condition import TextRow
from hymotion_ray.text.store import FeatureStore

NO_LIMIT = 1 << 60
"""Bytes: training needs every caption's features until its end, so nothing may be evicted."""
_ROWS_IN_MEMORY = 4096


class CaptionFeatures:
    """Features by caption, for one encoder."""

    def __init__(self, folder: str | Path, encoder: str) -> None:
        """encoder: name of the encoder that made the rows, as `encode.py` was told."""
        self._store = FeatureStore(folder, max_bytes=NO_LIMIT)
        self._encoder = encoder
        self._rows: OrderedDict[str, TextRow] = OrderedDict()

    def __call__(self, text: str) -> TextRow:
        """The features of a caption; `InputError` when they are gone from the store."""
        row = self._rows.get(text) or self._store.get(self._encoder, text)
        if row is None:
            raise InputError(
                f"the feature store {self._store.folder} has nothing for {text!r:.80}: it was"
                " emptied while training; run the same command again to encode what is missing"
            )
        self._rows[text] = row
        self._rows.move_to_end(text)
        if len(self._rows) > _ROWS_IN_MEMORY:
            self._rows.popitem(last=False)
        return row
