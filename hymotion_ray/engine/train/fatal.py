"""The error that no restart mends, passed from the worker that met it to the driver. Ray-free."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from hymotion_ray import errors
from hymotion_ray.engine.lease import WORK_FOLDER
from hymotion_ray.errors import HyMotionError
from hymotion_ray.formats.atomic import write_bytes

_FILE = f"{WORK_FOLDER}/fatal.json"


def write_fatal(out: Path, error: HyMotionError) -> None:
    """Leave `error` in the run folder; the first one stays."""
    if not (out / _FILE).exists():
        content = {"kind": type(error).__name__, "message": str(error)}
        write_bytes(out / _FILE, json.dumps(content).encode())


def read_fatal(out: Path) -> HyMotionError | None:
    """The error that a worker left, if any."""
    try:
        content = json.loads((out / _FILE).read_bytes())
    except (OSError, ValueError):
        return None
    kind = getattr(errors, content["kind"], HyMotionError)
    error: HyMotionError = kind(content["message"])
    return error


def clear_fatal(out: Path) -> None:
    """Forget what an earlier start left."""
    with contextlib.suppress(FileNotFoundError):
        (out / _FILE).unlink()
