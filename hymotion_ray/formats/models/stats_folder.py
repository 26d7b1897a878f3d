"""Mean and standard deviation of the 201 motion numbers: `stats/Mean.npy`, `stats/Std.npy`.

Knows what makes statistics usable. That a std below 1e-3 counts as 0 is decoding's rule, not this
file's.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from tokenize import TokenError

import numpy as np
import torch

from hymotion_ray.errors import CheckpointError
from hymotion_ray.formats.local_file import is_named, require_file, require_folder
from hymotion_ray.formats.models.names import NUM_FEATURES, STAT_NAMES

STATS_FOLDER = "stats"
_FILES = {"mean": "Mean.npy", "std": "Std.npy"}
_MIN_STD = 1e-3
# What numpy raises on a damaged file; its header is parsed as Python text.
_BROKEN = (ValueError, OSError, EOFError, SyntaxError, TokenError, TypeError, MemoryError)


def find_stats(folder: Path, named: str | None) -> Path | None:
    """The statistics folder of a model, or None: relative to the model, never to the process."""
    if named is not None:
        path = (folder / named).resolve()
        if not path.is_relative_to(folder.resolve()):
            warnings.warn(
                f"mean_std_dir {named!r} points outside the model folder {folder} and is not read",
                stacklevel=4,
            )
        elif path.exists():
            return path
    return folder / STATS_FOLDER if is_named(folder / STATS_FOLDER) else None


def choose_stats(
    tensors: dict[str, torch.Tensor], weights: Path, folder: Path | None
) -> dict[str, torch.Tensor]:
    """`mean` and `std`, each (201,) float32, from the weight file and the statistics folder.

    Either may hold them; where both do, they must agree. `CheckpointError` where neither does.
    """
    files = None
    if folder is not None:
        files = read_stats(require_folder(folder, CheckpointError))
    held = {name: tensors[name] for name in STAT_NAMES if name in tensors}
    for name, tensor in held.items():
        _check(tensor.float().numpy(), name, str(weights))
    if files is not None and folder is not None:
        agreed = _reconcile(held, files, weights, folder)
        return {n: agreed.get(n, torch.from_numpy(files[n]).float()) for n in STAT_NAMES}
    lacking = [name for name in STAT_NAMES if name not in held]
    if lacking:
        raise CheckpointError(
            f"{weights} lacks {' and '.join(lacking)}, and {weights.parent} has no {STATS_FOLDER} "
            "folder; put the Mean.npy and Std.npy of the release there"
        )
    return {name: tensor.reshape(-1).float() for name, tensor in held.items()}


def read_stats(folder: Path) -> dict[str, np.ndarray]:
    """`mean` and `std` of a statistics folder, each (201,) float64.

    Raises `CheckpointError` for a missing or damaged file, another shape, or numbers that no
    statistics can have.
    """
    stats = {}
    for name, file in _FILES.items():
        path = require_file(folder / file, CheckpointError)
        try:
            array = np.load(path, allow_pickle=False)
        except _BROKEN as error:
            raise CheckpointError(
                f"{path} is not a numpy array file, or is cut short: {error}"
            ) from error
        stats[name] = _check(array, name, str(path))
    return stats


def _check(array: np.ndarray, name: str, source: str) -> np.ndarray:
    """`array` as (201,) float64, or `CheckpointError` that names `source`."""
    if array.shape not in ((NUM_FEATURES,), (1, NUM_FEATURES)):
        raise CheckpointError(
            f"{source}: {name} has shape {array.shape}; allowed: ({NUM_FEATURES},) or "
            f"(1, {NUM_FEATURES})"
        )
    if array.dtype.kind != "f":
        raise CheckpointError(f"{source}: {name} is {array.dtype}; allowed: float numbers")
    flat = array.reshape(NUM_FEATURES).astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(flat))
    if len(bad):
        raise CheckpointError(
            f"{source}: {name} holds {len(bad)} numbers that are not finite, the first at index "
            f"{bad[0]}; take the statistics that came with the weights"
        )
    if name == "std" and flat.min() < 0:
        raise CheckpointError(
            f"{source}: std is {flat.min():g} at index {flat.argmin()}; allowed: 0 or above "
            "(were mean and std swapped?)"
        )
    if name == "std" and flat.max() < _MIN_STD:
        raise CheckpointError(
            f"{source}: every std is below {_MIN_STD}, which counts as 0, so every clip would come "
            "out as the mean pose; take the statistics that came with the weights"
        )
    return flat


def _reconcile(
    held: dict[str, torch.Tensor], files: dict[str, np.ndarray], weights: Path, folder: Path
) -> dict[str, torch.Tensor]:
    """The statistics of a model that holds them twice, each (201,) float32.

    `held` are the tensors of the weight file, `files` those of the folder. They agree when the
    file's numbers, rounded to the tensor's dtype, equal the tensor's. Then the file's are taken,
    which are at least as exact. Raises `CheckpointError` that says what differs.
    """
    agreed = {}
    for name, tensor in held.items():
        exact = torch.from_numpy(files[name])
        rounded = exact.to(tensor.dtype)
        differs = torch.nonzero(rounded != tensor.reshape(-1)).reshape(-1)
        if len(differs):
            at = int(differs[0])
            raise CheckpointError(
                f"{folder / _FILES[name]} and {name} in {weights} differ at {len(differs)} of "
                f"{NUM_FEATURES} numbers, first at index {at}: {files[name][at]:.9g} in the file, "
                f"{float(tensor.reshape(-1)[at]):.9g} with the weights. Motions would come out "
                f"wrong; restore the {STATS_FOLDER} folder that came with these weights, or remove "
                "it to use the numbers stored with the weights"
            )
        agreed[name] = exact.to(torch.float32)
    return agreed


def write_stats(mean: torch.Tensor, std: torch.Tensor, folder: Path) -> None:
    """Write both files as float64, which holds the float32 numbers exactly."""
    folder.mkdir()
    for name, tensor in (("mean", mean), ("std", std)):
        np.save(folder / _FILES[name], tensor.reshape(NUM_FEATURES).double().numpy())
