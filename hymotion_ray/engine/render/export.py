"""Stage: motions -> files and their manifest rows. Wraps `hymotion_ray.formats.motions`.

An item's files are written first, its manifest row after them: a row stands for files that exist.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hymotion_ray.engine import faults
from hymotion_ray.engine.lease import LeaseCheck
from hymotion_ray.engine.manifest import write_part
from hymotion_ray.engine.pulse import beat
from hymotion_ray.engine.render.decode import QUALITY_COLUMNS
from hymotion_ray.engine.render.settings import StageSettings
from hymotion_ray.engine.stage import ERROR, ERROR_CODE, Chunk
from hymotion_ray.formats.atomic import Store, open_store
from hymotion_ray.formats.motions import encode_motion
from hymotion_ray.motion.motion import Motion

SHARDS = "shards"
_COPIED = (
    "identity",
    "num_frames",
    "text",
    "original_text",
    "noise_seed",
    "seconds",
    "device",
    "cell",
    "precision",
    "degradations",
    "truncated",
    "warnings",
    *QUALITY_COLUMNS,
)


@dataclass
class ExportStage:
    """Writes the kept motions of a chunk to every target that asked for them.

    Out: one row an item with `num_done` and `num_failed` targets; no tensors.
    """

    settings: StageSettings
    lease: LeaseCheck | None = None
    """Whether the folder is still this job's; None where no other job can come."""
    name: str = "export"
    _store: Store | None = field(default=None, init=False)

    def setup(self) -> None:
        """Open the output folder."""
        self._store = open_store(self.settings.out)

    def __call__(self, chunk: Chunk) -> Chunk:
        """Write files, then the manifest part of the chunk, failed items included."""
        assert self._store is not None, "setup runs before the first call"
        alive = chunk.alive
        motions = dict(zip(alive, self._motions(chunk, alive), strict=True))
        self._require_lease()
        rows: list[dict[str, Any]] = []
        shard: list[dict[str, Any]] = []
        for index, item in enumerate(chunk.items.to_pylist()):
            contents = self._contents(motions[index]) if index in motions else {}
            for target in item["targets"]:
                row = self._row(item, target)
                if item[ERROR_CODE] is None:
                    row |= self._write(chunk.key, target, contents, shard)
                rows.append(row)
        if shard:
            self._store.write_bytes(shard_name(chunk.key), _parquet(shard))
        faults.reach("files-written", chunk.key)
        self._require_lease()
        write_part(self._store, chunk.key, rows)
        return _counted(chunk, rows)

    def _require_lease(self) -> None:
        if self.lease is not None:
            self.lease.require()

    def _motions(self, chunk: Chunk, alive: list[int]) -> list[Motion]:
        lengths = [chunk.column("num_frames")[i] for i in alive]
        if not lengths:
            return []
        parts = [chunk.tensors[n].split(lengths) for n in ("rot6d", "transl", "joints")]
        items, approximation = chunk.items.to_pylist(), self.settings.approximation
        return [
            Motion(
                rot6d=rot6d,
                transl=transl,
                joints=joints,
                fps=self.settings.fps,
                skeleton=self.settings.skeleton,
                meta={
                    "prompt": items[i]["text"],
                    "seed": items[i]["noise_seed"],
                    "model": self.settings.model_name,
                    "licence": self.settings.licence,
                    **({"noise": self.settings.noise} if self.settings.noise != "cpu" else {}),
                    **({"approximation": approximation} if approximation else {}),
                },
            )
            for i, rot6d, transl, joints in zip(alive, *parts, strict=True)
        ]

    def _contents(self, motion: Motion) -> dict[str, bytes]:
        return {f: encode_motion(motion, f, axis=self.settings.axis) for f in self.settings.formats}

    def _write(
        self,
        key: str,
        target: dict[str, Any],
        contents: dict[str, bytes],
        shard: list[dict[str, Any]],
    ) -> dict[str, Any]:
        assert self._store is not None
        first = self.settings.formats[0]
        if self.settings.layout == "shards":
            shard.append({"id": target["id"], "seed": target["seed"], **contents})
            file = f"{shard_name(key)}#{len(shard) - 1}"
        else:
            stem = self.settings.file_stem(target["group"], target["stem"])
            for name, data in contents.items():
                self._store.write_bytes(f"{stem}.{name}", data)
                beat()
            file = f"{stem}.{first}"
        return {
            "status": "done",
            "file": file,
            "sha256": hashlib.sha256(contents[first]).hexdigest(),
            "formats": ",".join(contents),
        }

    def _row(self, item: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
        row = {name: item.get(name) for name in _COPIED}
        for name in ("id", "group", "seed", "stem", "attempt"):
            row[name] = target[name]
        return row | {"status": "failed", ERROR_CODE: item[ERROR_CODE], ERROR: item[ERROR]}


def shard_name(key: str) -> str:
    """The shard file of a chunk."""
    return f"{SHARDS}/part-{key}.parquet"


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, compression="zstd")
    return sink.getvalue()


def _precision_words(chunk: Chunk) -> str | None:
    """`bfloat16: why`, where the sampler said so."""
    if "precision_reason" not in chunk.items.column_names:
        return None
    pairs = zip(chunk.column("precision"), chunk.column("precision_reason"), strict=True)
    return next((f"{name}: {why}" for name, why in pairs if name), None)


def _counted(chunk: Chunk, rows: list[dict[str, Any]]) -> Chunk:
    done = sum(row["status"] == "done" for row in rows)
    items = pa.table(
        {
            "chunk": [chunk.key],
            "num_done": [done],
            "num_failed": [len(rows) - done],
            "device": [next((r["device"] for r in rows if r["device"]), "")],
            "precision": [_precision_words(chunk)],
            "error": [next((r[ERROR] for r in rows if r[ERROR]), None)],
            ERROR_CODE: pa.array([None], pa.string()),
        }
    )
    return Chunk(key=chunk.key, items=items)
