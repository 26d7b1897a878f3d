"""Where clips come from: the seam between the pipeline and the readers of formats. Ray-free.

The engine knows three calls. `CollectionReader` makes them on motion collections; a test or a
benchmark may bring clips of its own making.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Protocol

import yaml

from hymotion_ray.config.fields import from_mapping
from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.atomic import read_bytes
from hymotion_ray.formats.sources import (
    CaptionIndex,
    ChunkKeys,
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

    def __init__(
        self, captions: CaptionIndex | None = None, chunk_keys: ChunkKeys | None = None
    ) -> None:
        self._captions, self._chunk_keys = captions, chunk_keys

    def list(self, root: str) -> Iterator[SourceFile]:
        """Files below a path or URL."""
        return list_sources([root])

    def read(self, file: SourceFile) -> Iterator[SourceClip | SourceReject]:
        """Clips and rejects of one file."""
        return read_source(file, captions=self._captions, chunk_keys=self._chunk_keys)

    def describe(self) -> dict[str, str | None]:
        """Nothing: captions may be others in a later run, clips keep those that they had."""
        return {}


def read_chunk_keys(path: str | None) -> ChunkKeys | None:
    """The key map of a YAML or JSON file: lists of names by field; None without a path.

    Raises `InputError` when the file cannot be read, `ConfigError` for a field that is unknown.
    """
    if path is None:
        return None
    try:
        values = yaml.safe_load(read_bytes(path))
    except (OutputError, yaml.YAMLError) as error:
        raise InputError(f"{path} is no YAML or JSON file of chunk keys: {error}") from error
    return from_mapping(ChunkKeys, values, path)


def is_below(file: SourceFile, folder: str) -> bool:
    """Whether a source file lies in `folder`, a path or URL: an --out among the sources is none."""
    places = [place if "://" in place else os.path.abspath(place) for place in (file.path, folder)]
    return places[0].startswith(places[1].rstrip("/") + "/")


def expand(sources: Sequence[str]) -> list[str]:
    """Sources with local globs replaced by what they match; a glob without match stays as it is."""
    found: list[str] = []
    for source in sources:
        matches = []
        if not os.path.exists(source) and "://" not in source and set("*?[") & set(source):
            matches = sorted(glob.glob(source, recursive=True))
        found += matches or [source]
    return list(dict.fromkeys(found))
