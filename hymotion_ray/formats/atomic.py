"""The one way outputs are written and read back: whole or not at all, on a disk or an object store.

A `Store` is a folder or a URL prefix. It knows names below it and bytes; nothing of what they hold.
It carries only the text of its place, so that it travels to other processes; clients come from
`locations.py`.

- Local disk: a hidden temporary name in the same folder, fsync, rename, fsync of the folder. Modes
  follow the umask.
- S3: one PUT, above 10 MB a multipart upload; Google: one resumable upload. The object appears when
  it is complete: a process killed half way leaves nothing to be seen.
- Azure: the blob appears, empty, when writing starts and is filled in one commit; readers must go
  by the manifest, whose row follows its file.

Errors that may pass (a network that drops, a busy server, EIO) are tried again: each request by the
store's own client, then the whole operation. A full disk, missing rights and the like fail at once.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pyarrow import fs

from hymotion_ray.errors import OutputError
from hymotion_ray.formats.locations import locate

T = TypeVar("T")

RETRY_PAUSES_S = (0.2, 1.0, 4.0)
"""Pauses between tries of a whole operation."""
_TEMP_NAME = re.compile(r"\.[0-9a-f]{16}\.tmp")
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
_DENIED = frozenset([errno.EACCES, errno.EPERM, errno.EROFS])
_MISPLACED = frozenset(
    [errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST]
)
# Words of the clients' messages, which carry no errno.
_DENIED_WORDS = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|CREDENTIAL|PERMISSION_DENIED"
    r"|UNAUTHENTICATED|AuthenticationFailed|AuthorizationFailure|HTTP status 40[13]",
    re.IGNORECASE,
)
_MISPLACED_WORDS = re.compile(r"NO_SUCH_BUCKET|ContainerNotFound|bucket does not exist", re.I)


@dataclass(frozen=True)
class Store:
    """A folder or URL prefix for outputs; names in it are relative, with `/` between levels."""

    root: str

    @property
    def filesystem(self) -> fs.FileSystem:
        """The pyarrow client of this place, for readers that take one beside `path`."""
        return locate(self.root).filesystem

    def path(self, name: str = "") -> str:
        """The path of a name as `filesystem` takes it; `OutputError` for one outside the root."""
        root = locate(self.root).path
        levels = name.split("/")
        if not name:
            return root
        if any(level in ("", ".", "..") or {"\0", "\\"} & set(level) for level in levels):
            raise OutputError(
                f"name {name!r} does not stay below {self.root}; allowed: relative, without '..'"
            )
        return f"{root.rstrip('/')}/{name}"

    def url(self, name: str = "") -> str:
        """The path or URL of a name as users know it."""
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def write_bytes(self, name: str, data: bytes | mmap.mmap) -> None:
        """Write a file whole or not at all, over one of that name; parent folders come with it.

        Raises `OutputError` when that cannot be done, after the retries.
        """
        path, filesystem = self.path(name), self.filesystem
        if isinstance(filesystem, fs.LocalFileSystem):
            _retry(lambda: _write_local(path, data), self.url(name), "written")
        else:
            _retry(lambda: _put(filesystem, path, data), self.url(name), "written")

    def write_file(self, name: str, source: str | os.PathLike[str]) -> None:
        """Write what a local file holds, like `write_bytes`, without reading it into memory."""
        if not os.path.getsize(source):
            self.write_bytes(name, b"")  # an empty file cannot be mapped
            return
        with open(source, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
            self.write_bytes(name, m)

    def read_bytes(self, name: str) -> bytes:
        """All bytes of a file; `OutputError` when it is not there or cannot be read."""
        path, filesystem = self.path(name), self.filesystem

        def read() -> bytes:
            with filesystem.open_input_stream(path, compression=None) as stream:
                data: bytes = stream.read()
                return data

        return _retry(read, self.url(name), "read")

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        path, filesystem = self.path(name), self.filesystem
        info = _retry(lambda: filesystem.get_file_info(path), self.url(name), "looked up")
        return bool(info.type == fs.FileType.File)

    def list_files(self, folder: str = "", suffix: str = "", limit: int | None = None) -> list[str]:
        """Names of the files below `folder` that end in `suffix`, sorted, unfinished ones left out.

        With `limit` at most so many; a local disk is then not listed further. A folder that does
        not exist is empty.
        """
        # Not on object stores: Google's client lists no folder that was not made as one.
        one_by_one = limit is not None and isinstance(self.filesystem, fs.LocalFileSystem)
        found: list[str] = []
        for name in self._walk(folder, one_by_one):
            if name.endswith(suffix) and not _TEMP_NAME.fullmatch(name.rpartition("/")[2]):
                found.append(name)
                if limit is not None and len(found) >= limit:
                    break
        return sorted(found)

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        path, filesystem = self.path(name), self.filesystem

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                filesystem.delete_file(path)

        _retry(remove, self.url(name), "removed")

    def remove_leftovers(self, older_than_s: float = 3600.0) -> int:
        """Remove temporary files that killed processes left on a local disk; returns how many."""
        if not isinstance(self.filesystem, fs.LocalFileSystem):
            return 0
        num_removed = 0
        for name in self._walk("", one_by_one=False):
            path = self.path(name)
            if not _TEMP_NAME.fullmatch(os.path.basename(path)):
                continue
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime > older_than_s:
                    os.unlink(path)
                    num_removed += 1
        return num_removed

    def _walk(self, folder: str, one_by_one: bool) -> Iterator[str]:
        """Names below `folder`: by one deep listing, or folder by folder."""
        root, filesystem = self.path(folder), self.filesystem
        selector = fs.FileSelector(root, allow_not_found=True, recursive=not one_by_one)
        infos = _retry(lambda: filesystem.get_file_info(selector), self.url(folder), "listed")
        prefix = f"{folder}/" if folder else ""
        for info in infos:
            name = prefix + info.path[len(root.rstrip("/")) + 1 :]
            if info.type == fs.FileType.File:
                yield name
            elif one_by_one and info.type == fs.FileType.Directory:
                yield from self._walk(name, one_by_one)


def open_store(root: str | os.PathLike[str]) -> Store:
    """The store at a folder or URL; nothing is touched. A relative folder becomes absolute.

    Raises `InputError` for a URL of an unknown kind and `OutputError` where a file stands.
    """
    text = os.fspath(root)
    location = locate(text)
    if not location.is_local:
        return Store(text.rstrip("/"))
    path = os.path.abspath(location.path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise OutputError(f"{text} is a file; allowed: a folder, which may not exist yet")
    return Store(path)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write one file at a path or URL, whole or not at all (see `Store.write_bytes`)."""
    folder, name = _split(path)
    open_store(folder).write_bytes(name, data)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """All bytes of the file at a path or URL; `OutputError` when it cannot be read."""
    folder, name = _split(path)
    return open_store(folder).read_bytes(name)


def _split(path: str | os.PathLike[str]) -> tuple[str, str]:
    text = os.fspath(path)
    if "://" not in text:
        text = os.path.abspath(os.path.expanduser(text))
    folder, _, name = text.replace(os.sep, "/").rpartition("/")
    return folder or "/", name


def _write_local(path: str, data: bytes | mmap.mmap) -> None:
    folder = os.path.dirname(path)
    temp = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(temp, flags, 0o666)
    except FileNotFoundError:
        _make_folders(folder)
        handle = os.open(temp, flags, 0o666)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise
    _sync_folder(folder)


def _make_folders(folder: str) -> None:
    parent = os.path.dirname(folder)
    if not os.path.isdir(parent):
        _make_folders(parent)
    with contextlib.suppress(FileExistsError):  # another process was first
        os.mkdir(folder)
    _sync_folder(parent)


def _sync_folder(folder: str) -> None:
    if os.name != "posix":
        return  # Windows has no handle for a folder
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network disks cannot sync a folder; the file itself is synced by then.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _put(filesystem: fs.FileSystem, path: str, data: bytes | mmap.mmap) -> None:
    with filesystem.open_output_stream(path, compression=None) as stream:
        stream.write(data)


def _retry(call: Callable[[], T], url: str, verb: str) -> T:
    """The result of `call`, tried again while its `OSError` may pass."""
    for pause in (*RETRY_PAUSES_S, None):
        try:
            return call()
        except OSError as error:
            reason = _lasting(error)
            if reason is not None or pause is None:
                advice = (
                    reason or f"tried {len(RETRY_PAUSES_S) + 1} times; check the disk or network"
                )
                raise OutputError(f"{url} cannot be {verb}: {error}; {advice}") from error
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _lasting(error: OSError) -> str | None:
    """What to do about an error that another try cannot mend; None for one that may pass."""
    text = str(error)
    if error.errno in _FULL:
        return "the disk is full; free space or pass another --out, and run the same command again"
    if error.errno in _DENIED or isinstance(error, PermissionError) or _DENIED_WORDS.search(text):
        return "no permission; check the owner and mode of the folder, or the store's credentials"
    misplaced = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError)
    if error.errno in _MISPLACED or isinstance(error, misplaced) or _MISPLACED_WORDS.search(text):
        return "check that the path or bucket exists and that no file stands where a folder must"
    return None
