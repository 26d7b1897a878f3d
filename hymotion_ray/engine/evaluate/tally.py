"""What is gathered over all clips: rows on disk, sums of sets, a bounded sample of embeddings.

Ray-free. Memory does not grow with the number of clips, but for one column at a time at the end.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hymotion_ray.engine.evaluate.measure import SCHEMA, TRUTH_NAMES, Measured
from hymotion_ray.engine.evaluate.source import Reject
from hymotion_ray.motion.metrics import METRIC_NAMES
from hymotion_ray.motion.metrics_frechet import Moments

MAX_EMBEDDED = 20_000
"""Clips whose embeddings are kept for the measures that need pairs of clips: a random sample."""
_FIRST_REJECTS = 50

Array = NDArray[np.float64]


class Tally:
    """The clips of one source, as they come. Use as a context."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        """path: a scratch file for the rows."""
        self.path = path
        self.num_clips = 0
        self.rejects: Counter[str] = Counter()
        self.first_rejects: list[Reject] = []
        self.moments: dict[str, Moments] = {}
        self.sample: list[tuple[str | None, Array, Array | None]] = []
        """(text, embedding, the text's embedding) of up to 20,000 clips."""
        self.embedded: Moments | None = None
        self._num_embedded = 0
        self._draw = np.random.default_rng(seed)
        self._writer = pq.ParquetWriter(path, SCHEMA)
        self._reject_file = path.with_suffix(".jsonl").open("w", encoding="utf-8")

    def __enter__(self) -> Tally:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """No more clips come."""
        self._writer.close()
        self._reject_file.close()

    def add(self, measured: Measured) -> None:
        """Take what came of a piece."""
        self._add_rejects(measured.rejects)
        if not measured.rows.num_rows:
            return
        self._writer.write_table(measured.rows)
        self.num_clips += measured.rows.num_rows
        for name, moments in measured.moments.items():
            held = self.moments.get(name)
            self.moments[name] = moments if held is None else held + moments
        if measured.embedded is not None:
            self._add_embeddings(measured, measured.embedded)

    @property
    def num_rejected(self) -> int:
        """Clips and files that were not measured."""
        return sum(self.rejects.values())

    @property
    def rejects_path(self) -> Path:
        """All rejects, a JSON line each."""
        return self.path.with_suffix(".jsonl")

    def batches(self, columns: list[str]) -> Iterator[dict[str, list[Any]]]:
        """The rows' columns as Python values, some thousand rows at a time; only after `close`."""
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(columns=columns):
                yield batch.to_pydict()

    def column(self, name: str) -> Array:
        """The finite numbers of a column."""
        with pq.ParquetFile(self.path) as file:
            values = file.read(columns=[name])[name].drop_null().to_numpy()
        numbers: Array = values[np.isfinite(values)]
        return numbers

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean, median, 5th and 95th percentile of each measure, and of how many clips."""
        found = {}
        for name in (*METRIC_NAMES, *TRUTH_NAMES):
            values = self.column(name)
            if len(values):
                low, middle, high = np.percentile(values, [5, 50, 95])
                found[name] = {
                    # Exact sums: clips come in any order.
                    "mean": math.fsum(values) / len(values),
                    "median": float(middle),
                    "p5": float(low),
                    "p95": float(high),
                    "num": len(values),
                }
        return found

    def _add_rejects(self, rejects: list[Reject]) -> None:
        for reject in rejects:
            self.rejects[reject.code] += 1
            self._reject_file.write(json.dumps(vars(reject), ensure_ascii=False) + "\n")
            if len(self.first_rejects) < _FIRST_REJECTS:
                self.first_rejects.append(reject)

    def _add_embeddings(self, measured: Measured, embedded: Array) -> None:
        moments = Moments.of(embedded)
        self.embedded = moments if self.embedded is None else self.embedded + moments
        texts, vectors = measured.rows["text"].to_pylist(), measured.embedded_texts
        for k, text in enumerate(texts):
            said = None if vectors is None or text is None else vectors[k]
            entry = (text, embedded[k], said)
            # Reservoir sampling (Vitter 1985): every clip has the same chance to stay.
            if len(self.sample) < MAX_EMBEDDED:
                self.sample.append(entry)
            elif (place := int(self._draw.integers(self._num_embedded + 1))) < MAX_EMBEDDED:
                self.sample[place] = entry
            self._num_embedded += 1
