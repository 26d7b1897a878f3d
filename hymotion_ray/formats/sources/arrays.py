"""Numpy arrays out of .npz and .npy files, one by one and without pickle.

Knows zip members and the .npy header, which is checked against the bytes that are there before
anything is allocated. Does not know what arrays mean. Only what is asked for is read: AMASS files
carry large marker arrays, and arrays of Python objects that need no reading.
"""

from __future__ import annotations

import contextlib
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.local_file import LFS_PREFIX
from hymotion_ray.formats.sources.file_bytes import too_large_member

_MAX_MEMBERS = 4096
_MAX_HEADER_BYTES = 1 << 20
_MAX_NUMBERS = 100_000_000
_BAD_HEADER = (
    *(ValueError, SyntaxError, TypeError, KeyError, OverflowError, RecursionError, MemoryError),
    *(tokenize.TokenError, EOFError, struct.error),
)
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError),
    *(OSError, RuntimeError, OverflowError, struct.error, ValueError),
)


class NpzFile:
    """The arrays of an open .npz by name."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members = {
            info.filename.removesuffix(".npy"): info
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arrays."""
        return tuple(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def read(self, name: str) -> NDArray[Any]:
        """One array. `SourceError`: missing, damaged, too large, or an object array (pickle)."""
        with self._open(name) as (stream, size):
            return read_npy(stream, size, name)

    def read_object_bytes(self, name: str) -> bytes:
        """The pickle inside an object array, unread."""
        with self._open(name) as (stream, size):
            _, _, dtype = _header(stream, name)
            if not dtype.hasobject:
                raise SourceError(f"`{name}` holds no Python object", "bad_syntax")
            return stream.read(size)

    def finite(self, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float64]:
        """One array of numbers as float64, checked for shape (None is free) and NaN."""
        return finite(self.read(name), shape, name)

    def scalar_text(self, name: str) -> str:
        """A text stored as str or bytes, 0-d or of one element; empty where there is none."""
        if name not in self:
            return ""
        array = self.read(name)
        if array.size != 1 or array.dtype.kind not in "SU":
            return ""
        value = array.reshape(()).item()
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        info = self._members.get(name)
        if info is None:
            raise SourceError(
                f"no `{name}` in the file; it has {', '.join(self.names[:20])}", "bad_syntax"
            )
        if bomb := too_large_member(info):
            raise SourceError(f"`{name}` {bomb}", "zip_bomb")
        try:
            with self._archive.open(info) as stream:
                yield stream, info.file_size
        except _DAMAGE as cause:
            raise SourceError(f"`{name}` is damaged: {cause}", "damaged") from cause


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """The arrays of a local .npz; `SourceError` for what is no zip archive."""
    try:
        archive = zipfile.ZipFile(path)
    except _DAMAGE as cause:
        with path.open("rb") as file:
            head = file.read(len(LFS_PREFIX))
        if head == LFS_PREFIX:
            message = "a Git LFS pointer, not the file itself; run `git lfs pull`"
            raise SourceError(message, "lfs_pointer") from cause
        code = "truncated" if head.startswith(b"PK") else "damaged"
        raise SourceError(f"not an npz file, or cut off: {cause}", code) from cause
    with archive:
        if len(archive.infolist()) > _MAX_MEMBERS:
            raise SourceError(f"{len(archive.infolist())} arrays in one npz", "zip_bomb")
        yield NpzFile(archive)


def read_npy(stream: IO[bytes], size: int, name: str) -> NDArray[Any]:
    """The array in a .npy stream of `size` bytes."""
    shape, fortran, dtype = _header(stream, name)
    if dtype.hasobject:
        raise SourceError(
            f"`{name}` holds Python objects, which need pickle and are not read", "unsafe_pickle"
        )
    num_bytes = dtype.itemsize
    for length in shape:
        num_bytes *= length
    if any(length < 0 for length in shape) or not 0 <= num_bytes <= size:
        raise SourceError(
            f"`{name}` says shape {shape} of {dtype}, more than its {size} bytes hold", "bad_header"
        )
    data = stream.read(num_bytes)
    if len(data) != num_bytes:
        raise SourceError(f"`{name}` has {len(data)} bytes of {num_bytes}", "truncated")
    array = np.frombuffer(data, dtype=dtype) if num_bytes else np.zeros(0, dtype=dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def finite(array: NDArray[Any], shape: tuple[int | None, ...], name: str) -> NDArray[np.float64]:
    """Numbers as float64, checked for shape (None is free, but not 0) and NaN."""
    fits = array.ndim == len(shape) and all(
        want in (None, got) for want, got in zip(shape, array.shape, strict=True)
    )
    if array.dtype.kind not in "fiu" or not fits:
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise SourceError(
            f"`{name}` is {array.dtype} of shape {array.shape}; allowed: numbers of ({wanted})",
            "bad_shape",
        )
    if array.size > _MAX_NUMBERS:
        raise SourceError(f"`{name}` has shape {array.shape}: too much to hold", "too_large")
    if 0 in array.shape:
        raise SourceError(f"`{name}` has shape {array.shape}: no frames", "no_frames")
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise SourceError(f"`{name}` holds NaN or infinite numbers", "not_finite")
    return values


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = npy.read_magic(stream)
        if version == (1, 0):
            return npy.read_array_header_1_0(stream, max_header_size=_MAX_HEADER_BYTES)
        if version == (2, 0):
            return npy.read_array_header_2_0(stream, max_header_size=_MAX_HEADER_BYTES)
    except _BAD_HEADER as cause:
        raise SourceError(f"`{name}` has a damaged header: {cause}", "bad_header") from cause
    raise SourceError(f"`{name}` has npy version {version}; allowed: 1.0, 2.0", "bad_header")
