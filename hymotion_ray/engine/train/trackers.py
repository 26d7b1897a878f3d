"""Where else the numbers of a training go: TensorBoard, Weights & Biases, MLflow. Ray-free.

Each is used only where its package is installed and, but for TensorBoard, only when it is named.
Keys, servers and projects come from those packages' own environment variables; nothing is sent
anywhere by default.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hymotion_ray.errors import ConfigError, MissingDependencyError

TENSORBOARD_FOLDER = "tensorboard"


class Tracker(Protocol):
    """Takes the numbers of one step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of a step."""

    def close(self) -> None:
        """Write what is held back."""


class TensorBoard:
    """Scalars as event files in `folder`/tensorboard; a resumed run hides what came after it."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(
            str(folder / TENSORBOARD_FOLDER), purge_step=first_step, flush_secs=10
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar a number."""
        for name, value in values.items():
            self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Write what is held back."""
        self._writer.close()


class WeightsAndBiases:
    """A W&B run; project, entity and offline mode by WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE."""

    def __init__(self, folder: Path, first_step: int) -> None:
        self._run = _package("wandb").init(
            dir=str(folder), id=_run_name(folder), name=_run_name(folder), resume="allow"
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MLflow:
    """An MLflow run named for the folder; server by MLFLOW_TRACKING_URI."""

    def __init__(self, folder: Path, first_step: int) -> None:
        self._mlflow: Any = _package("mlflow")
        self._mlflow.start_run(run_name=_run_name(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step; MLflow wants slashes, letters and figures, no brackets."""
        self._mlflow.log_metrics({k: float(v) for k, v in values.items()}, step=step)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


TRACKERS: dict[str, Callable[[Path, int], Tracker]] = {"wandb": WeightsAndBiases, "mlflow": MLflow}
"""Trackers by the name of their package."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse unknown names, and packages that are not installed, before a run starts."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"tracker is {name!r}; allowed: {', '.join(TRACKERS)}")
        _package(name)


def has_tensorboard() -> bool:
    """Whether event files can be written here."""
    return importlib.util.find_spec("tensorboardX") is not None


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"the tracker {name} needs its package ({error}): pip install {name}"
        ) from error


def _run_name(folder: Path) -> str:
    return folder.resolve().name
