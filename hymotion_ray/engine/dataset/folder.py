"""The output folder of an ingest: whose it is, and who may extend it. Ray-free."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from typing import Any

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.ingest import FPS, INGEST_SCHEMA_VERSION, IngestConfig
from hymotion_ray.engine.dataset.reader import Reader
from hymotion_ray.engine.identity import digest
from hymotion_ray.engine.lease import WORK_FOLDER
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store
from hymotion_ray.motion.skeleton import Skeleton

CONFIG_FILE = "config.json"


def folder_settings(config: IngestConfig, reader: Reader, skeleton: Skeleton) -> dict[str, Any]:
    """What all clips of one folder share: gates, splits, skeleton, and what the reader says."""
    return {
        "fps": FPS,
        "gates": to_mapping(config.gates),
        "splits": to_mapping(config.splits),
        "skeleton": digest({"rest": skeleton.rest.tolist()}),
        "reader": reader.describe(),
    }


def existing_settings(store: Store) -> dict[str, Any] | None:
    """Settings of the folder as an earlier run left it; None when it is new.

    Raises `OutputError` when it holds something else, or a form this release cannot extend.
    """
    if not store.exists(CONFIG_FILE):
        # A driver that was killed at once leaves its lease alone.
        found = [n for n in store.list_files("", limit=8) if not n.startswith(f"{WORK_FOLDER}/")]
        if found:
            raise OutputError(
                f"{store.url()} is not empty and holds no {CONFIG_FILE} of an ingest (found"
                f" {found[0]}); pass an empty or new folder as --out"
            )
        return None
    try:
        saved = json.loads(store.read_bytes(CONFIG_FILE))
        schema_version, settings = saved["ingest_schema_version"], dict(saved["folder"])
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(
            f"{store.url(CONFIG_FILE)} is not the config of an ingest ({error!r}); pass another"
            " folder as --out"
        ) from error
    if schema_version != INGEST_SCHEMA_VERSION:
        raise OutputError(
            f"{store.url(CONFIG_FILE)} has schema version {schema_version}; allowed:"
            f" {INGEST_SCHEMA_VERSION}; use another --out, or the release that wrote it"
        )
    return settings


def require_same(store: Store, settings: dict[str, Any]) -> None:
    """Refuse a run whose settings are not those of a folder that exists, with both values shown."""
    earlier = existing_settings(store)
    if earlier is None:
        return
    changed = []
    for name in sorted(set(earlier) | set(settings)):
        there, here = earlier.get(name), settings.get(name)
        if isinstance(there, dict) and isinstance(here, dict):
            inner = [k for k in sorted(set(there) | set(here)) if there.get(k) != here.get(k)]
            changed += [
                f"{name}.{k} is {there.get(k)!r} there, {here.get(k)!r} here" for k in inner
            ]
        elif there != here:
            changed.append(f"{name} is {there!r} there, {here!r} here")
    if changed:
        raise OutputError(
            f"{store.url()} belongs to another ingest: {'; '.join(changed)}. Use the folder's"
            " settings to add sources to it, or pass another --out"
        )


def save_config(store: Store, config: IngestConfig, settings: dict[str, Any]) -> None:
    """Write config.json: resolved config, whose folder it is, versions."""
    names = ("hymotion-ray", "ray", "torch", "numpy", "scipy", "pyarrow")
    saved = {
        "ingest_schema_version": INGEST_SCHEMA_VERSION,
        "folder": settings,
        "config": to_mapping(config),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in names},
        },
    }
    store.write_bytes(CONFIG_FILE, json.dumps(saved, indent=1, ensure_ascii=False).encode())
