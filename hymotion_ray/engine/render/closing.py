"""The last steps of a render job: the manifest in order, failures, page, summary. Ray-free."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine import faults
from hymotion_ray.engine.manifest import (
    MERGE_AT,
    count_rows,
    merge_parts,
    part_name,
    part_names,
    read_batches,
    single_parts,
)
from hymotion_ray.engine.render.export import SHARDS
from hymotion_ray.engine.render.extend import clip_bytes
from hymotion_ray.engine.render.report import JobReport
from hymotion_ray.engine.settle import settle_rows
from hymotion_ray.engine.worklist import target_key
from hymotion_ray.formats.atomic import Store
from hymotion_ray.formats.html import html_page, viewer_data
from hymotion_ray.formats.motions import decode_motion

_FAILURE_FIELDS = ("id", "group", "seed", "text", "num_frames", "error_code", "error", "attempt")
_FEW_PARTS = 100
"""Parts of single chunks that a finished folder may be left with."""


class Merger:
    """Merges the manifest parts of a running job beside it, so that they never become very many."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: list[str] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="merge")
        self._merging: Future[None] | None = None

    def add(self, key: str) -> None:
        """The chunk of this key has written its part. Raises what the last merge raised."""
        self._names.append(part_name(key))
        if len(self._names) >= MERGE_AT and (self._merging is None or self._merging.done()):
            if self._merging is not None:
                self._merging.result()
            self._merging = self._thread.submit(merge_parts, self._store, self._names)
            self._names = []

    def close(self) -> None:
        """Wait for the merge under way."""
        self._thread.shutdown(wait=True)


def close_folder(
    store: Store, config: RenderConfig, report: JobReport, scratch: Path, num_expected: int | None
) -> None:
    """Put the manifest in order; write failures.jsonl, index.html and summary.json from it.

    `num_expected` rows mean that the manifest holds one an item; None: it must be looked into.
    """
    if len(single := single_parts(store)) > _FEW_PARTS:
        merge_parts(store, single)
    if num_expected is None or count_rows(store) != num_expected:
        settle_rows(store, scratch / "settle.sqlite")
    if config.layout == "shards":
        _remove_orphan_shards(store)
    faults.reach("closing")
    _write_failures(store, scratch / "failures.jsonl")
    report.page = _write_page(store, config, report.counts.first_keys)
    summary = json.dumps(report.to_mapping(), indent=1, ensure_ascii=False)
    store.write_bytes("summary.json", summary.encode())


def _write_failures(store: Store, path: Path) -> None:
    """Write failures.jsonl from the manifest, by way of a local file, as a stream."""
    with path.open("w", encoding="utf-8") as sink:
        for name in part_names(store):
            has_failed = any(
                "failed" in batch.column("status").unique().to_pylist()
                for batch in read_batches(store, ["status"], [name])
            )
            if has_failed:
                for batch in read_batches(store, ["status", *_FAILURE_FIELDS], [name]):
                    sink.writelines(_failure_line(row) for row in batch.to_pylist() if _failed(row))
    store.write_file("failures.jsonl", path)


def _failed(row: dict[str, Any]) -> bool:
    return bool(row["status"] == "failed")


def _failure_line(row: dict[str, Any]) -> str:
    return json.dumps({name: row[name] for name in _FAILURE_FIELDS}, ensure_ascii=False) + "\n"


def _remove_orphan_shards(store: Store) -> None:
    """Remove shards without a manifest row: a killed job wrote them, and their items came again."""
    held: set[str] = set()
    for batch in read_batches(store, ["file"]):
        held.update(f.partition("#")[0] for f in batch.column("file").unique().to_pylist() if f)
    for name in store.list_files(SHARDS, suffix=".parquet"):
        if name not in held:
            store.remove(name)


def _write_page(store: Store, config: RenderConfig, first_keys: list[bytes]) -> str | None:
    """The page of the first clips asked for, as far as they are done."""
    wanted = {key: place for place, key in enumerate(first_keys)}
    found: dict[int, str] = {}
    columns = ["group", "stem", "status", "file"]
    for batch in read_batches(store, columns):
        if len(found) == len(wanted):
            break
        values = [batch.column(name).to_pylist() for name in columns]
        for group, stem, status, file in zip(*values, strict=True):
            place = wanted.get(target_key(group, stem))
            if place is not None and status == "done":
                found[place] = file
    motions = [decode_motion(clip_bytes(store, found[i]), "npz") for i in sorted(found)]
    if not motions:
        return None
    page = html_page(viewer_data(motions), title=f"hymotion-ray: {config.model}")
    store.write_bytes("index.html", page.encode())
    return store.url("index.html")
