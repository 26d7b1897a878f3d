"""Write a folder whole or not at all. Knows nothing of what goes into it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hymotion_ray.errors import OutputError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give an empty temporary folder beside `target`, which becomes `target` when the block ends.

    On an error nothing is left. Everything is flushed to disk before the rename, so after a crash
    `target` is complete or absent. Raises `OutputError` when `target` is a file, holds something
    already, or cannot be written.
    """
    _refuse_taken(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
        temporary.mkdir()
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror}") from error
    try:
        yield temporary
        flush_tree(temporary)
        _refuse_taken(target)
        os.rename(temporary, target)
        _flush(target.parent)
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def flush_tree(folder: Path) -> None:
    """Make sure that all files and folders below `folder`, and itself, are on disk."""
    for root, _, files in os.walk(folder):
        for name in files:
            _flush(Path(root, name))
        _flush(Path(root))


def _refuse_taken(target: Path) -> None:
    if target.is_file():
        raise OutputError(f"{target} is a file; give a new folder")
    if target.is_dir() and any(target.iterdir()):
        raise OutputError(
            f"{target} exists and is not empty; give a new folder, or remove this one first"
        )


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
