"""The last steps of a render job: failures, page, summary. Ray-free."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.engine.render.extend import clip_bytes
from hymotion_ray.engine.worklist import target_key
from hymotion_ray.formats.atomic import Store
from hymotion_ray.formats.html import html_page, viewer_data
from hymotion_ray.formats.motions import decode_motion

if TYPE_CHECKING:
    from hymotion_ray.engine.render.job import JobReport

_FAILURE_FIELDS = ("id", "group", "seed", "text", "num_frames", "error_code", "error", "attempt")


def close_folder(store: Store, config: RenderConfig, report: JobReport) -> None:
    """Write failures.jsonl, index.html and summary.json from what the manifest says."""
    wanted = {key: i for i, key in enumerate(report.counts.first_keys)}
    shown: dict[int, dict[str, Any]] = {}
    failed: dict[str, dict[str, Any]] = {}
    done: set[str] = set()
    for batch in read_batches(store):
        for row in batch.to_pylist():
            key = target_key(row["group"], row["stem"])
            if row["status"] == "failed":
                if failed.get(key, {}).get("attempt", 0) < row["attempt"]:
                    failed[key] = row
                continue
            if row["attempt"] > 1:
                done.add(key)
            if key in wanted:
                shown[wanted[key]] = row
    open_failures = [row for key, row in failed.items() if key not in done]
    lines = [
        json.dumps({name: row[name] for name in _FAILURE_FIELDS}, ensure_ascii=False) + "\n"
        for row in open_failures
    ]
    store.write_bytes("failures.jsonl", "".join(lines).encode())
    report.page = _write_page(store, config, [shown[i] for i in sorted(shown)])
    summary = json.dumps(report.to_mapping(), indent=1, ensure_ascii=False)
    store.write_bytes("summary.json", summary.encode())


def _write_page(store: Store, config: RenderConfig, rows: list[dict[str, Any]]) -> str | None:
    motions = [decode_motion(clip_bytes(store, row["file"]), "npz") for row in rows]
    if not motions:
        return None
    store.write_bytes(
        "index.html",
        html_page(viewer_data(motions), title=f"hymotion-ray: {config.model}").encode(),
    )
    return store.url("index.html")
