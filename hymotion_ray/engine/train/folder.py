"""The run folder: whose it is, and what a second start of it may change. Ray-free.

Its config.json holds what decides the weights. The same command goes on where the run stopped; more
steps, other workers, other reports are fine; another model, data or objective is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.training import TRAIN_SCHEMA_VERSION, TrainConfig
from hymotion_ray.engine.lease import WORK_FOLDER
from hymotion_ray.engine.train.origin import Origin
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import write_bytes
from hymotion_ray.formats.shards import MANIFEST_FILE, Dataset

CONFIG_FILE = "config.json"
_KIND = "training run"
_FREE = (
    *("data", "out", "init", "max_steps", "global_batch", "micro_batch", "log_every", "saving"),
    *(
        "failures",
        "workers",
        "tensorboard",
        "trackers",
        "profile_ranks",
        "address",
        "feature_store",
        "text",
    ),
    *("llm_path", "clip_path"),
)
"""Settings that another start may change: none decides which numbers are computed, only rounding,
where things lie, and how long."""
_FREE_INPUT = ("reader", "readers", "cache_mb", "prefetch")
_BINDING_PARALLEL = ("precision", "lora_rank", "lora_alpha", "trainable")


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """What a run folder belongs to."""

    identity: dict[str, Any]
    """Settings that must be the same at every start."""
    global_batch: int
    """Clips a step, resolved at the first start."""
    schedule_steps: int
    """`max_steps` of the first start."""


def open_run(
    config: TrainConfig, origin: Origin, dataset: Dataset, encoder: str, num_workers: int
) -> RunFolder:
    """The folder of `config`, made or found again; writes its config.json.

    num_workers: those of this start, for a global batch that is still open. Raises `OutputError`
    for a folder of something else or of a run with other settings.
    """
    out = Path(config.out)
    identity = _identity(config, origin, dataset, encoder)
    earlier = _existing(out)
    if earlier is None:
        folder = RunFolder(
            identity=identity,
            global_batch=config.global_batch or config.micro_batch * num_workers,
            schedule_steps=config.max_steps,
        )
    else:
        _require_same(out, earlier, identity, config.global_batch)
        folder = earlier
    saved = {
        "kind": _KIND,
        "schema_version": TRAIN_SCHEMA_VERSION,
        **dataclasses.asdict(folder),
        "config": to_mapping(config),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("hymotion-ray", "ray", "torch", "numpy")},
        },
    }
    write_bytes(out / CONFIG_FILE, json.dumps(saved, indent=1, ensure_ascii=False).encode())
    return folder


def check_run_folder(out: Path) -> None:
    """Raise `OutputError` when `out` belongs to something else, before anything is written."""
    _existing(out)


def _existing(out: Path) -> RunFolder | None:
    if not (out / CONFIG_FILE).exists():
        found = [p.name for p in out.iterdir() if p.name != WORK_FOLDER] if out.is_dir() else []
        if found or out.is_file():
            raise OutputError(
                f"{out} is not empty and holds no {CONFIG_FILE} of a training run"
                f" (found {found[0] if found else 'a file'}); pass an empty or new folder as --out"
            )
        return None
    try:
        saved = json.loads((out / CONFIG_FILE).read_bytes())
        if saved["kind"] != _KIND:
            raise KeyError("kind")
        schema = saved["schema_version"]
        folder = RunFolder(
            **{field.name: saved[field.name] for field in dataclasses.fields(RunFolder)}
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(
            f"{out / CONFIG_FILE} is not the config of a training run ({error!r}); pass another"
            " folder as --out"
        ) from error
    if schema != TRAIN_SCHEMA_VERSION:
        raise OutputError(
            f"{out / CONFIG_FILE} has schema version {schema}; allowed: {TRAIN_SCHEMA_VERSION};"
            " use the release that wrote it, or start a new run with --init and its checkpoint"
        )
    return folder


def _identity(
    config: TrainConfig, origin: Origin, dataset: Dataset, encoder: str
) -> dict[str, Any]:
    settings = to_mapping(config)
    for name in _FREE:
        del settings[name]
    for name in _FREE_INPUT:
        del settings["input"][name]
    settings["parallel"] = {n: settings["parallel"][n] for n in _BINDING_PARALLEL}
    text = dataclasses.replace(origin.base.config.text, llm_path=None, clip_path=None)
    model = to_mapping(dataclasses.replace(origin.base.config, text=text))
    manifest = hashlib.sha256(dataset.store.read_bytes(MANIFEST_FILE)).hexdigest()[:16]
    start = origin.base.fingerprint if origin.has_weights else "new weights"
    held = {"dataset": manifest, "model": model, "start": start, "text_encoder": encoder}
    return json.loads(json.dumps({**settings, **held}))  # as it is read back


def _require_same(
    out: Path, earlier: RunFolder, identity: dict[str, Any], global_batch: int
) -> None:
    changed = _differences(earlier.identity, identity)
    if global_batch not in (0, earlier.global_batch):
        changed.append(f"global_batch is {earlier.global_batch} there, {global_batch} here")
    if changed:
        raise OutputError(
            f"{out} belongs to another run: {'; '.join(changed[:6])}. Use its settings to go on,"
            " or start a new run in another --out with --init and one of its checkpoints"
        )


def _differences(there: Any, here: Any, path: str = "") -> list[str]:
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return [] if there == here else [f"{path} is {there!r:.60} there, {here!r:.60} here"]
    found = []
    for name in sorted(there.keys() | here.keys()):
        inner = f"{path}.{name}" if path else name
        found += _differences(there.get(name), here.get(name), inner)
    return found
