"""Where clips come from: the seam between the pipeline and the readers of formats. Ray-free.

The engine knows three calls. `CollectionReader` makes them on motion collections; a test or a
benchmark may bring clips of its own making.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Protocol

from hymotion_ray.formats.sources import (
    CaptionIndex,
    SourceClip,
    SourceFile,
    SourceReject,
    list_sources,
    read_source,
)


class Reader(Protocol):
    """Lists files and reads them. Travels to the workers, so it must be picklable and small."""

    def list(self, root: str) -> Iterator[SourceFile]:
        """Files below one source, named relative to it. `InputError` when it does not exist."""

    def read(self, file: SourceFile) -> Iterator[SourceClip | SourceReject]:
        """The clips of one file, one at a time."""

    def describe(self) -> dict[str, str | None]:
        """What of it decides how clips look, for the folder's config."""


class CollectionReader:
    """Reads motion collections, with the captions that belong to their files."""

    def __init__(self, captions: CaptionIndex | None = None) -> None:
        self._captions = captions

    def list(self, root: str) -> Iterator[SourceFile]:
        """Files below a path or URL."""
        return list_sources([root])

    def read(self, file: SourceFile) -> Iterator[SourceClip | SourceReject]:
        """Clips and rejects of one file."""
        return read_source(file, captions=self._captions)

    def describe(self) -> dict[str, str | None]:
        """Nothing: captions may be others in a later run, clips keep those that they had."""
        return {}


def expand(sources: Sequence[str]) -> list[str]:
    """Sources with local globs replaced by what they match; a glob without match stays as it is."""
    found: list[str] = []
    for source in sources:
        matches = []
        if not os.path.exists(source) and "://" not in source and set("*?[") & set(source):
            matches = sorted(glob.glob(source, recursive=True))
        found += matches or [source]
    return list(dict.fromkeys(found))
