"""The rows of a work list as the chunks that travel. Ray-free; knows no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from hymotion_ray.engine.identity import digest
from hymotion_ray.engine.stage import Chunk

MAX_TARGETS = 1024
"""Targets a row carries; more are a second row, so that chunks stay small."""

TARGET = pa.struct(
    [
        ("id", pa.string()),
        ("group", pa.string()),
        ("seed", pa.int64()),
        ("stem", pa.string()),
        ("attempt", pa.int32()),
    ]
)
ITEMS = pa.schema(
    [
        ("identity", pa.string()),
        ("noise_seeds", pa.list_(pa.int64())),
        ("targets", pa.list_(TARGET)),
        ("text", pa.string()),
        ("original_text", pa.string()),
        ("num_frames", pa.int32()),
        ("num_steps", pa.int32()),
        ("guidance_scale", pa.float64()),
        ("num_tokens", pa.int32()),
        ("warnings", pa.string()),
        ("error_code", pa.string()),
        ("error", pa.string()),
    ]
)


class Target(NamedTuple):
    """A file that asked for a clip."""

    id: str
    group: str
    seed: int
    stem: str
    attempt: int


class WorkRow(NamedTuple):
    """One clip to compute, and who asked for it."""

    identity: str
    noise_seeds: tuple[int, ...]
    targets: list[Target]
    text: str
    original_text: str | None
    num_frames: int
    num_steps: int
    guidance_scale: float
    num_tokens: int
    warnings: str


def make_chunk(rows: Sequence[WorkRow]) -> Chunk:
    """The chunk of some rows, named by them."""
    key = digest({"items": [[r.identity, [t.stem for t in r.targets]] for r in rows]})
    columns = dict(zip(WorkRow._fields, zip(*rows, strict=True), strict=True))
    columns["targets"] = tuple([t._asdict() for t in targets] for targets in columns["targets"])
    nothing = (None,) * len(rows)
    arrays = [pa.array(columns.get(f.name, nothing), f.type) for f in ITEMS]
    return Chunk(key=key, items=pa.Table.from_arrays(arrays, schema=ITEMS))
