"""The output folder of a render job: whose it is, and who may extend it. Ray-free."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from typing import Any

from hymotion_ray.config.fields import from_mapping, to_mapping
from hymotion_ray.config.grid import Grid
from hymotion_ray.config.render import RENDER_SCHEMA_VERSION, RenderConfig
from hymotion_ray.engine.identity import digest
from hymotion_ray.engine.lease import WORK_FOLDER
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store

CONFIG_FILE = "config.json"


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What one output folder belongs to: its clips share these; others need another."""

    settings: dict[str, Any]
    """Model, encoder, sampling settings and layout, by name."""
    grid: Grid
    """Cells that the folder's clips are sampled in."""
    made_on: dict[str, str] = field(default_factory=dict)
    """Under `--exact`: what the processes of each step ran on."""


def folder_identity(settings: dict[str, Any]) -> str:
    """One name for the settings that decide a clip within its class (layout and axis do not)."""
    return digest(
        {k: v for k, v in settings.items() if k not in ("layout", "axis", "exact", "split")}
    )


def existing_folder(store: Store) -> Folder | None:
    """The folder as it was left by an earlier job; None when it is new.

    Raises `OutputError` when it holds something else, or a form this release cannot extend.
    """
    if not store.exists(CONFIG_FILE):
        found = [n for n in store.list_files("", limit=8) if not n.startswith(f"{WORK_FOLDER}/")]
        if found:
            raise OutputError(
                f"{store.url('')} is not empty and holds no {CONFIG_FILE} of a render job"
                f" (found {found[0]}); pass an empty or new folder as --out"
            )
        return None
    try:
        saved = json.loads(store.read_bytes(CONFIG_FILE))
        version = saved["schema_version"]
        settings, grid = saved["folder"], saved["grid"]
        made_on = dict(saved.get("made_on", {}))
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(
            f"{store.url(CONFIG_FILE)} is not the config of a render job ({error!r});"
            " pass another folder as --out"
        ) from error
    if version != RENDER_SCHEMA_VERSION:
        raise OutputError(
            f"{store.url(CONFIG_FILE)} has schema version {version}; allowed:"
            f" {RENDER_SCHEMA_VERSION}; use another --out, or the release that wrote it"
        )
    kept = from_mapping(Grid, grid, f"{CONFIG_FILE}: grid")
    return Folder(settings=settings, grid=kept, made_on=made_on)


def require_same(store: Store, earlier: Folder, settings: dict[str, Any]) -> None:
    """Refuse a job whose settings are not the folder's, with both values shown."""
    names = sorted(set(earlier.settings) | set(settings))
    changed = [n for n in names if earlier.settings.get(n) != settings.get(n)]
    if changed:
        lines = "; ".join(
            f"{n} is {earlier.settings.get(n)!r} there, {settings.get(n)!r} here" for n in changed
        )
        raise OutputError(
            f"{store.url('')} belongs to another render job: {lines}. Use the folder's settings to"
            " extend it (more prompts, seeds or formats), or pass another --out"
        )


def save_folder(store: Store, folder: Folder, config: RenderConfig) -> None:
    """Write config.json: resolved config, whose folder it is, versions."""
    saved = {
        "schema_version": RENDER_SCHEMA_VERSION,
        "folder": folder.settings,
        "folder_identity": folder_identity(folder.settings),
        "grid": to_mapping(folder.grid),
        **({"made_on": folder.made_on} if folder.made_on else {}),
        "config": to_mapping(config),
        "versions": _versions(),
    }
    store.write_bytes(CONFIG_FILE, json.dumps(saved, indent=1, ensure_ascii=False).encode())


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    names = ("hymotion-ray", "ray", "torch", "numpy", "scipy", "pyarrow")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
