"""Checks on a local file before anything reads it. Knows no format.

A weight or statistics file that is not what its name says is the commonest fault of a model folder:
never fetched (a Git LFS pointer in its place), cut short, empty, or simply not there.
"""

from __future__ import annotations

import os
from pathlib import Path

from hymotion_ray.errors import InputError

LFS_PREFIX = b"version https://git-lfs"


def require_file(path: Path, error: type[InputError] = InputError) -> Path:
    """`path` again if it is a file with content that is not a Git LFS pointer, else `error`."""
    if path.is_dir():
        raise error(f"{path} is a folder; a file is expected here")
    _require_there(path, "", error)
    if not path.is_file():
        raise error(f"{path} is a device or pipe; a plain file is expected here")
    try:
        with path.open("rb") as file:
            head = file.read(len(LFS_PREFIX))
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror}") from cause
    if not head:
        raise error(f"{path} is empty (0 bytes); copy or download it again")
    if head == LFS_PREFIX:
        raise error(
            f"{path} is a Git LFS pointer, not the file itself; run `git lfs install` and then "
            f"`git lfs pull` in {path.parent}, or download the file from the model's page"
        )
    return path


def is_named(path: Path) -> bool:
    """Whether the folder has an entry of this name; a broken link counts, so that it is told of."""
    return os.path.lexists(path)


def require_folder(path: Path, error: type[InputError] = InputError) -> Path:
    """`path` again if it is a folder, else `error`."""
    _require_there(path, "; a folder is expected here", error)
    if not path.is_dir():
        raise error(f"{path} is a file; a folder is expected here")
    return path


def _require_there(path: Path, expected: str, error: type[InputError]) -> None:
    if path.exists():
        return
    if path.is_symlink():
        raise error(
            f"{path} is a link to {path.readlink()}, which is missing{expected}; copy the target "
            "along with the link"
        )
    raise error(f"{path} is missing{expected}{_neighbours(path)}")


def _neighbours(path: Path, most: int = 8) -> str:
    """What the folder holds instead, for the message about a file that is not there."""
    folder = path.parent
    if not folder.is_dir():
        return ""
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in folder.iterdir())
    shown = ", ".join(names[:most]) + (", ..." if len(names) > most else "")
    return f"; {folder} holds {shown or 'nothing'}"
