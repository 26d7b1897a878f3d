"""Finds the files of a collection of motions: folders, URLs and the members of zip archives.

Knows suffixes and the first bytes that tell apart files of one suffix. Opens nothing else, and
reports every file it meets: what is hidden, unknown or no motion becomes a `SourceFile` whose
`kind` is not a key of the readers' table and whose `note` says why.
"""

from __future__ import annotations

import os
import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyarrow import fs

from hymotion_ray.errors import InputError
from hymotion_ray.formats.locations import Location, locate
from hymotion_ray.formats.sources.file_bytes import (
    MAX_BYTES,
    head_bytes,
    open_archive,
    too_large_member,
)

HEAD_BYTES = 4096
MAX_ARCHIVE_MEMBERS = 1_000_000

# Files that are read: suffix -> kind. Those of the second table need a look inside.
KINDS = {
    ".npz": "npz",
    ".npy": "npy",
    ".bvh": "bvh",
    ".amc": "amc",
    ".pkl": "pickle",
    ".pickle": "pickle",
    ".pt": "torch",
    ".pth": "torch",
    ".glb": "glb",
    ".vrma": "glb",
    ".vrm": "glb",
    ".fbx": "fbx",
    ".parquet": "parquet",
}
_LOOK_INSIDE = (".txt", ".json", ".csv")

# Files that never claim to be a motion, and what they are.
_NOT_MOTIONS = {
    ".asf": ("skeleton", "a skeleton, used by the .amc files beside it"),
    ".md": ("document", "a text page"),
    ".rst": ("document", "a text page"),
    ".pdf": ("document", "a text page"),
    ".html": ("document", "a text page"),
    "": ("document", "a file without suffix"),
}
# Formats that hold motion but are not read, and the way round.
_UNKNOWN = {
    ".c3d": "marker positions need a solver; export BVH or AMASS npz from it",
    ".trc": "marker positions need a solver; export BVH or AMASS npz from it",
    ".gltf": "glTF with separate buffers; save it as one .glb file",
    ".h5": "HDF5 holds joint angles of a body model of its own; export BVH or npz from it",
    ".hdf5": "HDF5 holds joint angles of a body model of its own; export BVH or npz from it",
    ".gz": "a compressed archive; unpack it, or give a .zip",
    ".bz2": "a compressed archive; unpack it, or give a .zip",
    ".xz": "a compressed archive; unpack it, or give a .zip",
    ".tar": "a tar archive; unpack it, or give a .zip",
    ".7z": "a 7z archive; unpack it, or give a .zip",
    ".blend": "a Blender file; export BVH, GLB or FBX from it",
}
_READABLE = "npz, npy, bvh, amc, pkl, pt, glb, vrma, fbx, parquet, DeepMimic txt, zip of these"


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of a collection, or one member of a zip archive in it; plain, small, picklable."""

    path: str
    """Path or URL of the file, of the archive for a member."""
    member: str = ""
    """Name inside the archive."""
    name: str
    """Relative to the source it was found under, with `/`."""
    kind: str
    """A key of the readers' table, or what else it is: captions, skeleton, hidden, unknown ..."""
    size: int
    """Bytes, unpacked."""
    note: str = ""
    """Why it is not read, for kinds that are not."""

    @property
    def place(self) -> str:
        """Where the file is, or would be if its archive were unpacked where it lies."""
        if not self.member:
            return self.path
        return f"{parent_folder(self.path)}/{self.member}"


def parent_folder(path: str) -> str:
    """The folder of a path or URL, `.` for a bare name."""
    return path.replace(os.sep, "/").rpartition("/")[0] or "."


def list_sources(paths: Iterable[str | os.PathLike[str]]) -> Iterator[SourceFile]:
    """Every file below the paths or URLs, in order of name; archives give their members.

    `InputError` for a path that does not exist. A file that several paths lead to comes once.
    """
    seen: set[tuple[str, str]] = set()
    for path in paths:
        for file in _list_one(os.fspath(path)):
            if (file.path, file.member) not in seen:
                seen.add((file.path, file.member))
                yield file


def _list_one(text: str) -> Iterator[SourceFile]:
    location = locate(text)
    info = location.filesystem.get_file_info(location.path)
    if info.type == fs.FileType.NotFound:
        raise InputError(f"{text}: no such file or folder")
    if info.type == fs.FileType.File:
        clean = location.path if location.is_local else text
        yield from _classify(clean, posixpath.basename(text), info.size, location)
    elif location.is_local:
        yield from _walk(os.path.abspath(location.path), "", {os.path.realpath(location.path)})
    else:
        yield from _list_url(text.rstrip("/"), location)


def _walk(folder: str, prefix: str, above: set[str]) -> Iterator[SourceFile]:
    """Files below a local folder; links to folders are followed unless they lead back."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as cause:
        note = f"the folder cannot be read: {cause.strerror}"
        yield SourceFile(path=folder, name=prefix or ".", kind="unreadable", size=0, note=note)
        return
    for entry in entries:
        name, path = prefix + entry.name, entry.path
        if entry.is_dir():
            real = os.path.realpath(path)
            if _is_hidden(entry.name):
                yield SourceFile(path=path, name=name, kind="hidden", size=0, note=_HIDDEN)
            elif real in above:
                note = "a link back to a folder above it"
                yield SourceFile(path=path, name=name, kind="hidden", size=0, note=note)
            else:
                yield from _walk(path, name + "/", above | {real})
            continue
        try:
            size = entry.stat().st_size
        except OSError as cause:
            note = f"cannot be read: {cause.strerror}"
            yield SourceFile(path=path, name=name, kind="unreadable", size=0, note=note)
            continue
        yield from _classify(path, name, size, Location(fs.LocalFileSystem(), path, path))


def _list_url(text: str, location: Location) -> Iterator[SourceFile]:
    selector = fs.FileSelector(location.path, recursive=True)
    found = location.filesystem.get_file_info(selector)
    for info in sorted(found, key=lambda info: info.path):
        if info.type == fs.FileType.File:
            name = info.path.removeprefix(location.path).lstrip("/")
            place = Location(location.filesystem, info.path, f"{text}/{name}")
            yield from _classify(place.text, name, info.size, place)


_HIDDEN = "hidden by its name; rename it to have it read"


def _is_hidden(name: str) -> bool:
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return any(part.startswith((".", "__MACOSX")) for part in parts)


def _classify(path: str, name: str, size: int, location: Location) -> Iterator[SourceFile]:
    if name.lower().endswith(".zip") and not _is_hidden(name):
        yield from _members(path, name, size)
        return
    kind, note = kind_of(name, size, lambda: head_bytes(location, HEAD_BYTES))
    yield SourceFile(path=path, name=name, kind=kind, size=size, note=note)


def _members(path: str, name: str, size: int) -> Iterator[SourceFile]:
    """The members of a zip archive, whose directory alone is read."""
    try:
        archive = open_archive(path)
        members = [m for m in archive.infolist() if not m.is_dir()]
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError, InputError) as cause:
        note = f"not a zip archive, or damaged: {cause}"
        yield SourceFile(path=path, name=name, kind="unreadable", size=size, note=note)
        return
    if len(members) > MAX_ARCHIVE_MEMBERS:
        note = f"{len(members)} members; at most {MAX_ARCHIVE_MEMBERS} are read, split the archive"
        yield SourceFile(path=path, name=name, kind="bomb", size=size, note=note)
        return
    known: set[str] = set()
    for member in members:
        inside = f"{name}/{member.filename}"
        kind, note = _kind_of_member(archive, member)
        if member.filename in known:
            kind, note = "unreadable", "a second member of one name in its archive"
        known.add(member.filename)
        yield SourceFile(
            path=path,
            member=member.filename,
            name=inside,
            kind=kind,
            size=member.file_size,
            note=note,
        )


def _kind_of_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[str, str]:
    if member.flag_bits & 1:
        return "unreadable", "encrypted; unpack the archive with its password first"
    if bomb := too_large_member(member):
        return "bomb", bomb
    if member.filename.lower().endswith(".zip"):
        return "unknown", "an archive inside an archive; unpack the outer one"

    def head() -> bytes:
        with archive.open(member) as file:
            return file.read(HEAD_BYTES)

    try:
        return kind_of(member.filename, member.file_size, head)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as cause:
        return "unreadable", f"damaged: {cause}"


def kind_of(name: str, size: int, head) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    """The kind of a file and, where it is not read, why; `head()` gives its first bytes."""
    suffix = posixpath.splitext(name)[1].lower()
    if _is_hidden(name):
        return "hidden", _HIDDEN
    if suffix in KINDS and size == 0:
        return "empty", "0 bytes; copy or download it again"
    if suffix in KINDS and size > MAX_BYTES:
        return "bomb", f"{size} bytes; at most {MAX_BYTES} are read, split the file"
    if suffix in KINDS:
        return KINDS[suffix], ""
    if suffix in _LOOK_INSIDE:
        return _kind_of_text(name, head())
    if suffix in _NOT_MOTIONS:
        return _NOT_MOTIONS[suffix]
    return "unknown", f"{_UNKNOWN.get(suffix, f'unknown kind {suffix!r}')}; readable: {_READABLE}"


_ANNOTATION = re.compile(
    rb"^[^\n]*#[^\n]*#\s*(?:nan|[\d.]+)\s*#\s*(?:nan|[\d.]+)\s*$", re.MULTILINE
)


def _kind_of_text(name: str, head: bytes) -> tuple[str, str]:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lower = name.lower()
    if b'"Frames"' in text and text[:1] == b"{":
        return "deepmimic", ""
    if lower.endswith(".csv"):
        first = text.split(b"\n", 1)[0].lower()
        if b"caption" in first or b"source_path" in first:
            return "captions", "captions, given to the clips that they name"
        return "document", "a table without a caption column"
    if lower.endswith(".json") and b'"feat_p"' in text:
        return "captions", "BABEL captions, given to the clips that they name"
    if lower.endswith(".txt") and _ANNOTATION.search(text):
        return "captions", "HumanML3D captions, given to the clips that they name"
    if lower.endswith(".json") and b'"annotations"' in text:
        return "captions", "captions, given to the clips that they name"
    return "document", "text that holds no motion"
