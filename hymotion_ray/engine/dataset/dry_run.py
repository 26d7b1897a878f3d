"""What an ingest would read, without reading it, a cluster or an output folder. Ray-free."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.ingest import IngestConfig
from hymotion_ray.engine.dataset.captions import read_captions
from hymotion_ray.engine.dataset.folder import folder_settings, require_same
from hymotion_ray.engine.dataset.listing import FileList
from hymotion_ray.engine.dataset.manifest import read_manifest, table_batches
from hymotion_ray.engine.dataset.reader import CollectionReader, Reader, expand, read_chunk_keys
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.motion.skeleton import generic_skeleton

STAGES = ("list", "read", "convert", "gate", "dedupe", "shard")


def describe(
    config: IngestConfig, say: Callable[[str], None], reader: Reader | None = None
) -> dict[str, Any]:
    """Config, stages and counts of files, JSON-ready; raises what the job itself would so far."""
    store = open_store(config.out)
    captions = None
    if reader is None:
        captions = read_captions(config.captions, config.sources, say, store.root)
        reader = CollectionReader(
            captions.index if captions else None, read_chunk_keys(config.chunk_keys)
        )
    require_same(store, folder_settings(config, reader, generic_skeleton()))
    with (
        tempfile.TemporaryDirectory(prefix="hymotion-ray-") as scratch,
        FileList(Path(scratch) / "files.sqlite") as files,
    ):
        manifest = read_manifest(store)
        for batch in table_batches(store, manifest, "files") if manifest else ():
            files.add_known((r["key"], r["size"], r["path"]) for r in batch.to_pylist())
        taken = 0
        for reject in files.add_sources(reader, expand(config.sources), store.root):
            say(f"rejected {reject.name}: {reject.message}")
            taken += 1
        counts = files.counts
        return {
            "config": to_mapping(config),
            "stages": list(STAGES),
            "files": counts.files,
            "new": counts.new,
            "done": counts.done,
            "name_taken": taken,
            "captions": captions.to_mapping() if captions else {},
            "files_by_kind": dict(counts.kinds.most_common()),
            "exit_code": 1 if taken else 0,
        }
