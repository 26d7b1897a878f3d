"""Stage: rows of scratch parts -> one shard and its numbers. Ray-free.

A shard has its name from the clips in it, so the same shard is written under the same name however
often a job is stopped; a small file beside the parts tells what a finished one holds.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hymotion_ray.config.ingest import ShardConfig
from hymotion_ray.engine.dataset.catalogue import ShardPlan
from hymotion_ray.engine.dataset.moments import Moments
from hymotion_ray.engine.dataset.part import MOMENTS, read_data
from hymotion_ray.engine.lease import WORK_FOLDER
from hymotion_ray.formats.atomic import Store, open_store
from hymotion_ray.formats.shard_table import encode_shard
from hymotion_ray.formats.shards import FOLDER, ShardInfo, shard_mapping
from hymotion_ray.motion.features import NUM_FEATURES


@dataclass(frozen=True)
class WrittenShard:
    """A shard that exists, and the moments of its clips' features."""

    info: ShardInfo
    moments: Moments

    def to_json(self) -> str:
        """As text."""
        packed = base64.b64encode(self.moments.to_bytes()).decode()
        return json.dumps({"info": shard_mapping(self.info), "moments": packed})

    @classmethod
    def from_json(cls, text: str) -> WrittenShard:
        """What `to_json` made."""
        saved = json.loads(text)
        moments = Moments.from_bytes(base64.b64decode(saved["moments"]))
        return cls(ShardInfo(**saved["info"]), moments)


@dataclass(frozen=True)
class ShardStage:
    """Writes shards below an output folder."""

    out: str
    shards: ShardConfig

    def __call__(self, plan: ShardPlan) -> WrittenShard:
        """Write the shard of a plan, unless it is there already."""
        store = open_store(self.out)
        done = written_shard(store, plan.name)
        if done is not None:
            return done
        moments = Moments.none(NUM_FEATURES)
        tables: list[pa.Table] = []
        for chunk, data, rows, groups in _runs(plan):
            table = read_data(store, chunk, data, rows)
            for packed in table[MOMENTS].to_pylist():
                moments = moments.merged(Moments.from_bytes(packed))
            table = table.drop_columns([MOMENTS])
            at = table.schema.get_field_index("split_group")
            column = pa.array(groups, pa.string())
            tables.append(table.set_column(at, table.schema.field(at), column))
        whole = pa.concat_tables(tables).combine_chunks()
        content = encode_shard(whole, self.shards.row_group_mb * 1e6)
        info = ShardInfo(
            name=plan.name,
            split=plan.split,
            num_clips=whole.num_rows,
            num_frames=sum(whole["num_frames"].to_pylist()),
            num_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )
        written = WrittenShard(info, moments)
        store.write_bytes(plan.name, content)
        store.write_bytes(_note_name(plan.name), written.to_json().encode())
        return written


def written_shard(store: Store, name: str) -> WrittenShard | None:
    """A shard that this round has finished, None when it has not."""
    note = _note_name(name)
    if not store.exists(note) or not store.exists(name):
        return None
    return WrittenShard.from_json(store.read_bytes(note).decode())


def written_names(store: Store) -> list[str]:
    """Names of the shards that this round has finished, whether or not they are still planned."""
    notes = store.list_files(f"{WORK_FOLDER}/{FOLDER}", suffix=".json")
    return [note.removeprefix(f"{WORK_FOLDER}/").removesuffix(".json") for note in notes]


def _note_name(name: str) -> str:
    return f"{WORK_FOLDER}/{name}.json"


def _runs(plan: ShardPlan) -> Iterator[tuple[str, int, list[int], list[str]]]:
    """Entries that follow one another in one data file: (chunk, data, rows, groups)."""
    current: tuple[Any, ...] | None = None
    rows: list[int] = []
    groups: list[str] = []
    for chunk, data, row, group in plan.entries:
        if current is not None and current != (chunk, data):
            yield (*current, rows, groups)
            rows, groups = [], []
        current = (chunk, data)
        rows.append(row)
        groups.append(group)
    if current is not None:
        yield (*current, rows, groups)
