"""Content hashes of the files an encoder is made of. Knows no encoder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any


def hash_files(paths: Iterable[Path], settings: dict[str, Any]) -> str:
    """Hex sha256 over the names and contents of `paths` and over `settings` (JSON values).

    Folders do not count, so a moved model keeps its hash. A file is read once a process as long as
    its size and change time stay the same.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for path in sorted(paths, key=lambda p: p.name):
        stat = path.stat()
        content = _hash_file(str(path.resolve()), stat.st_size, stat.st_mtime_ns)
        digest.update(f"\n{path.name} {content}".encode())
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _hash_file(path: str, size: int, mtime_ns: int) -> str:
    """Hash of one file; size and change time are only keys of the cache."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
