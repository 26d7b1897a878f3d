"""Training checkpoints on disk: model folders that render takes as they are, with `state/` beside.

    checkpoints/step-00000006/  config.json model.safetensors ...   the running mean of the weights
                                state/                              what a resume needs
                                complete.json                       sizes and checksums, last
    latest                                                          name of the newest, after that

A checkpoint appears by one rename of a folder that is whole and on disk; `complete.json` tells also
where a copy was cut short. Knows files. Knows no ranks and no training.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from hymotion_ray.engine import faults
from hymotion_ray.engine.train.objective import NETWORK_PREFIX
from hymotion_ray.errors import CheckpointError
from hymotion_ray.formats.atomic import write_bytes
from hymotion_ray.formats.models.checkpoint import Checkpoint, read_model, write_model
from hymotion_ray.formats.models.names import NULL_NAMES
from hymotion_ray.formats.models.new_folder import new_folder
from hymotion_ray.formats.torch_file import read_torch_file, write_torch_file

STATE_SCHEMA_VERSION = 1
FOLDER, LATEST, COMPLETE = "checkpoints", "latest", "complete.json"
STATE = "state"
_WEIGHTS, _MEAN = f"{STATE}/weights.safetensors", f"{STATE}/mean.safetensors"
_OPTIMIZER, _RUN = f"{STATE}/optimizer.pt", f"{STATE}/run.json"
_NAME = re.compile(r"step-(\d{8,})")

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Staged:
    """Copies of all that a checkpoint holds, which training does not touch any more."""

    step: int
    weights: Tensors
    """Weights as trained, by the names of `FlowModel`'s state."""
    mean: Tensors
    """Their running mean."""
    optimizer: Mapping[str, Any]
    """Tensors and plain values."""
    run: Mapping[str, Any]
    """Position in the data, counters, random state: plain values."""
    merged: Tensors | None = None
    """The mean as a plain model's state, where adapters were trained beside it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Restored:
    """What a checkpoint held."""

    step: int
    weights: Tensors
    mean: Tensors
    optimizer: dict[str, Any]
    run: dict[str, Any]


def checkpoint_name(step: int) -> str:
    """Name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"


def model_of(state: Mapping[str, Tensor], base: Checkpoint) -> Checkpoint:
    """`base` with the weights of a `FlowModel`'s state."""
    network = {
        name.removeprefix(NETWORK_PREFIX): tensor
        for name, tensor in state.items()
        if name.startswith(NETWORK_PREFIX)
    }
    return dataclasses.replace(
        base,
        network=network,
        null_vtxt_feat=state["null_vtxt_feat"],
        null_ctxt_input=state["null_ctxt_input"],
    )


def state_of(model: Checkpoint) -> Tensors:
    """The state of a `FlowModel` with the weights of `model`, in float32."""
    state = {NETWORK_PREFIX + name: tensor.float() for name, tensor in model.network.items()}
    return state | {name: getattr(model, name).float() for name in NULL_NAMES}


def write_checkpoint(out: Path, staged: Staged, base: Checkpoint) -> Path:
    """Write one checkpoint whole or not at all, then point `latest` at it; returns its folder.

    One of the same step that is complete stays as it is. Raises `OutputError` when the disk
    refuses; nothing half-written then has the checkpoint's name.
    """
    target = out / FOLDER / checkpoint_name(staged.step)
    if fault_in(target) is not None:
        shutil.rmtree(target, ignore_errors=True)
        with new_folder(target) as new:
            write_model(model_of(staged.merged or staged.mean, base), new)
            _write_state(new, staged)
            faults.reach("save-files", target.name)
            content = {"schema_version": STATE_SCHEMA_VERSION, "files": _sums(new)}
            (new / COMPLETE).write_text(json.dumps(content, indent=1), "utf-8")
            faults.reach("save-complete", target.name)
    faults.reach("save-named", target.name)
    write_bytes(out / LATEST, f"{FOLDER}/{target.name}\n".encode())
    faults.reach("save-done", target.name)
    return target


def read_checkpoint(folder: Path) -> Restored:
    """What `write_checkpoint` wrote; `CheckpointError` for another form."""
    run = json.loads((folder / _RUN).read_bytes())
    if run["schema_version"] != STATE_SCHEMA_VERSION:
        raise CheckpointError(
            f"{folder / _RUN} has schema version {run['schema_version']}; allowed:"
            f" {STATE_SCHEMA_VERSION}; resume with the release that wrote it, or start a new run"
            f" with --init {folder}"
        )
    has_own_mean = (folder / _MEAN).exists()
    mean = load_file(folder / _MEAN) if has_own_mean else state_of(read_model(folder))
    return Restored(
        step=run["step"],
        weights=load_file(folder / _WEIGHTS),
        mean=mean,
        optimizer=read_torch_file(folder / _OPTIMIZER, error=CheckpointError),
        run=run,
    )


def newest(out: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole; torn ones are skipped, and `say` tells of them.

    Not what `latest` says: a run killed between a checkpoint and `latest` has a newer one.
    """
    for folder in reversed(all_checkpoints(out)):
        fault = fault_in(folder)
        if fault is None:
            return folder
        say(f"warning: skipped the checkpoint {folder}: {fault}")
    return None


def all_checkpoints(out: Path) -> list[Path]:
    """Folders named like checkpoints, oldest first, whole or not."""
    found = [p for p in (out / FOLDER).glob("step-*") if _NAME.fullmatch(p.name) and p.is_dir()]
    return sorted(found, key=step_of)


def step_of(folder: Path) -> int:
    """The step that a checkpoint is named after."""
    match = _NAME.fullmatch(folder.name)
    assert match is not None, folder
    return int(match.group(1))


def fault_in(folder: Path) -> str | None:
    """What is wrong with a checkpoint; None when every file is there with its size and checksum."""
    try:
        files = json.loads((folder / COMPLETE).read_bytes())["files"]
    except FileNotFoundError:
        return f"it has no {COMPLETE}: it was never finished"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {COMPLETE} cannot be read ({error})"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"]:
            return f"{name} is missing or cut short"
        if _sha256(path) != expected["sha256"]:
            return f"{name} is damaged: its checksum is another"
    return None


def prune(out: Path, keep: int, best: str | None) -> list[Path]:
    """Remove all but the `keep` newest checkpoints and the one named `best`; returns the removed.

    Half-written folders of killed saves go too.
    """
    folders = all_checkpoints(out)
    removed = [folder for folder in folders[:-keep] if folder.name != best]
    for folder in removed:
        (folder / COMPLETE).unlink(missing_ok=True)  # first, so that half of one is never whole
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def clear_leftovers(out: Path) -> None:
    """Remove what killed processes left under temporary names; nobody may be writing.

    Folders of saves, and files such as a half-written `latest` or note of the best checkpoint.
    """
    for left in (*out.glob(".*.tmp"), *(out / FOLDER).glob(".*.tmp")):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _write_state(folder: Path, staged: Staged) -> None:
    (folder / STATE).mkdir()
    save_file({name: t.contiguous() for name, t in staged.weights.items()}, folder / _WEIGHTS)
    if staged.merged is not None:
        save_file({name: t.contiguous() for name, t in staged.mean.items()}, folder / _MEAN)
    write_torch_file(dict(staged.optimizer), folder / _OPTIMIZER)
    run = {"schema_version": STATE_SCHEMA_VERSION, "step": staged.step, **staged.run}
    (folder / _RUN).write_text(json.dumps(run, indent=1), "utf-8")


def _sums(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
