"""Checks on a local file before anything reads it. Knows no format.

A weight or statistics file that is not what its name says is the commonest fault of a model folder:
never fetched (a Git LFS pointer in its place), cut short, empty, or simply not there.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hymotion_ray.errors import InputError

LFS_PREFIX = b"version https://git-lfs"
_HASH_BLOCK = 1 << 20


def require_file(path: Path, error: type[InputError] = InputError) -> Path:
    """`path` again if it is a file with content that is not a Git LFS pointer, else `error`."""
    if path.is_dir():
        raise error(f"{path} is a folder; a file is expected here")
    if not path.exists():
        raise error(f"{path} is missing{_neighbours(path)}")
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


def require_folder(path: Path, error: type[InputError] = InputError) -> Path:
    """`path` again if it is a folder, else `error`."""
    if path.is_file():
        raise error(f"{path} is a file; a folder is expected here")
    if not path.is_dir():
        raise error(f"{path} is missing; a folder is expected here{_neighbours(path)}")
    return path


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes in hex, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _neighbours(path: Path, most: int = 8) -> str:
    """What the folder holds instead, for the message about a file that is not there."""
    folder = path.parent
    if not folder.is_dir():
        return ""
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in folder.iterdir())
    shown = ", ".join(names[:most]) + (", ..." if len(names) > most else "")
    return f"; {folder} holds {shown or 'nothing'}"
