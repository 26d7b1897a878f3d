"""Writes checkpoints in the background, one at a time, keeps the newest and the best.

Rank 0's. What is written is the staged copy that it was given, whatever training does meanwhile. A
save that fails is told and does not end training; the next one comes. Only when the last one of a
run fails does `finish` raise. Knows no tensors and no ranks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hymotion_ray.config.training import SavingConfig
from hymotion_ray.engine.train.checkpoints import (
    FOLDER,
    Staged,
    all_checkpoints,
    prune,
    write_checkpoint,
)
from hymotion_ray.errors import HyMotionError
from hymotion_ray.formats.atomic import write_bytes
from hymotion_ray.formats.models.checkpoint import Checkpoint

BEST = f"{FOLDER}/best.json"


@dataclass
class Saver:
    """The checkpoints of one run folder."""

    out: Path
    base: Checkpoint
    """All of the model but its weights."""
    config: SavingConfig
    say: Callable[[str], None]
    _thread: threading.Thread | None = field(default=None, init=False)
    _error: HyMotionError | None = field(default=None, init=False)

    def save(self, staged: Staged, score: float | None) -> None:
        """Write `staged`; returns at once when saving in the background, after the save before.

        score: lower is better; None: unknown.
        """
        self.wait()
        if not self.config.in_background:
            self._write(staged, score)
            return
        self._thread = threading.Thread(
            target=self._write, args=(staged, score), name="checkpoint", daemon=False
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait for the save at work; raise the error of the last one, if it failed."""
        self.wait()
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Wait for the save at work, if any."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, staged: Staged, score: float | None) -> None:
        try:
            folder = write_checkpoint(self.out, staged, self.base)
            best = self._best(folder.name, score)
            prune(self.out, self.config.keep, best if self.config.keep_best else None)
            self._error = None
        except HyMotionError as error:
            self._error = error
            self.say(f"warning: the checkpoint of step {staged.step} was not written: {error}")

    def _best(self, name: str, score: float | None) -> str | None:
        """Name of the best checkpoint, this one included; noted beside them."""
        held = read_best(self.out)
        if score is not None and (held is None or score <= held[1]):
            content = {"checkpoint": name, "loss": score}
            write_bytes(self.out / BEST, json.dumps(content).encode())
            return name
        return None if held is None else held[0]


def read_best(out: Path) -> tuple[str, float] | None:
    """Name and loss of the best checkpoint that is still there; None when none is known."""
    try:
        content = json.loads((out / BEST).read_bytes())
        name, loss = str(content["checkpoint"]), float(content["loss"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    known = {folder.name for folder in all_checkpoints(out)}
    return (name, loss) if name in known else None
