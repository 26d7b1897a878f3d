"""The bytes of a source file, wherever it lies, with limits on how many there may be.

Knows local paths, URLs and members of zip archives. Does not know what the bytes mean.
"""

from __future__ import annotations

import contextlib
import functools
import io
import lzma
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.local_file import LFS_PREFIX
from hymotion_ray.formats.locations import Location, locate

MAX_BYTES = 2 << 30
"""Largest file that is read whole: an hour of AMASS at 120 fps with its markers is 1.5 GB."""
# A member that grows by more than this and is large is a bomb: motion text packs about ten to one.
_MAX_RATIO = 200
_LARGE_BYTES = 64 << 20
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError),
    *(RuntimeError, OverflowError),
)


def head_bytes(location: Location, count: int) -> bytes:
    """The first bytes of a file, none when it cannot be opened."""
    try:
        with location.filesystem.open_input_stream(location.path, compression=None) as stream:
            return stream.read(count)
    except OSError:
        return b""


def read_file(path: str, member: str = "", *, limit: int = MAX_BYTES) -> bytes:
    """All bytes of a file or archive member.

    `SourceError` for one that is missing, over `limit` bytes, damaged, or a Git LFS pointer.
    """
    try:
        with _open(path, member) as stream:
            content = stream.read(limit + 1)
    except OSError as cause:
        raise SourceError(f"cannot be read: {cause.strerror or cause}", "unreadable") from cause
    except _DAMAGE as cause:
        raise SourceError(f"the archive is damaged here: {cause}", "damaged") from cause
    if len(content) > limit:
        raise SourceError(f"more than {limit} bytes; at most {limit} are read", "too_large")
    if content.startswith(LFS_PREFIX):
        raise SourceError(
            "a Git LFS pointer, not the file itself; run `git lfs pull`", "lfs_pointer"
        )
    return content


@contextlib.contextmanager
def local_path(path: str, member: str = "") -> Iterator[Path]:
    """The file as a local one, for libraries that take paths: itself, or a temporary copy."""
    location = locate(path)
    if not member and location.is_local:
        yield Path(location.path)
        return
    suffix = os.path.splitext(member or path)[1]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"file{suffix}"
        try:
            with _open(path, member) as stream, copy.open("wb") as target:
                shutil.copyfileobj(_Limited(stream), target, 1 << 20)
        except OSError as cause:
            raise SourceError(f"cannot be read: {cause.strerror or cause}", "unreadable") from cause
        except _DAMAGE as cause:
            raise SourceError(f"the archive is damaged here: {cause}", "damaged") from cause
        yield copy


def neighbours(path: str, member: str = "") -> list[str]:
    """Names of the files in the same folder (of the archive, for a member), as `sibling` takes."""
    if member:
        folder = member.rpartition("/")[0]
        names = open_archive(path).namelist()
        return [n for n in names if n.rpartition("/")[0] == folder and not n.endswith("/")]
    location = locate(path)
    if not location.is_local:
        return _url_neighbours(path, location)
    folder = os.path.dirname(location.path) or "."
    return [entry.path for entry in os.scandir(folder) if entry.is_file()]


def _url_neighbours(path: str, location: Location) -> list[str]:
    from pyarrow import fs

    folder, key = path.rpartition("/")[0], location.path.rpartition("/")[0]
    found = location.filesystem.get_file_info(fs.FileSelector(key))
    return [f"{folder}/{info.base_name}" for info in found if info.type == fs.FileType.File]


def open_archive(path: str) -> zipfile.ZipFile:
    """A zip archive, local or behind a URL; kept open, since collections have many members."""
    location = locate(path)
    if location.is_local:
        status = os.stat(location.path)
        return _local_archive(location.path, status.st_mtime_ns, status.st_size)
    info = location.filesystem.get_file_info(location.path)
    return _remote_archive(path, info.mtime_ns, info.size)


@functools.lru_cache(maxsize=2)
def _local_archive(path: str, _mtime: int, _size: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


@functools.lru_cache(maxsize=2)
def _remote_archive(path: str, _mtime: int, _size: int) -> zipfile.ZipFile:
    location = locate(path)
    return zipfile.ZipFile(location.filesystem.open_input_file(location.path))


def too_large_member(member: zipfile.ZipInfo) -> str:
    """Why a member is not read for what it says of its size; empty when it is."""
    if member.file_size > MAX_BYTES:
        return f"unpacks to {member.file_size} bytes; at most {MAX_BYTES} are read"
    if member.file_size > _LARGE_BYTES and member.file_size > _MAX_RATIO * member.compress_size:
        return (
            f"unpacks from {member.compress_size} to {member.file_size} bytes; above"
            f" {_LARGE_BYTES} at most {_MAX_RATIO} times the packed size is read"
        )
    return ""


@contextlib.contextmanager
def _open(path: str, member: str) -> Iterator[IO[bytes]]:
    if member:
        archive = open_archive(path)
        try:
            info = archive.getinfo(member)
        except KeyError as cause:
            raise SourceError(f"no member {member!r} in {path}", "unreadable") from cause
        if bomb := too_large_member(info):
            raise SourceError(bomb, "zip_bomb")
        with archive.open(info) as stream:
            yield stream
        return
    location = locate(path)
    with location.filesystem.open_input_stream(location.path, compression=None) as stream:
        yield stream


class _Limited(io.RawIOBase):
    """A stream that refuses to give more than `MAX_BYTES`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, MAX_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise SourceError(f"more than {MAX_BYTES} bytes; not read", "too_large")
        return data
