"""Which files hold prompts: expands paths, folders, globs and URLs. Knows names, opens nothing.

A folder is read with all its sub-folders, in the order of the paths. Passed over: hidden files and
folders, links to folders, anything that is not a plain file, the output folders of earlier renders
(they hold `config.json` and `manifest/`), and files of other kinds; all but the hidden ones are
counted in a warning.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyarrow import fs

from hymotion_ray.config.fields import shown
from hymotion_ray.errors import InputError
from hymotion_ray.formats.locations import Location, locate
from hymotion_ray.formats.streams import COMPRESSIONS

KINDS = (".txt", ".json", ".jsonl", ".csv", ".parquet")
_ALLOWED = f"{', '.join(KINDS)} (all but .parquet also with .gz or .zst)"
_GLOB_CHARS = frozenset("*?[")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class PromptFile:
    """One file of prompts."""

    location: Location
    name: str
    """Path or URL as users know it, always valid UTF-8."""
    stem: str
    """File name without suffixes: the start of derived ids."""
    kind: str
    """One of `KINDS`."""
    compression: str | None
    """gzip, zstd or None."""


def list_prompt_files(paths: Paths, warn: Callable[[str], None]) -> list[PromptFile]:
    """The files behind `paths`, in the order given; one that is named twice is read once.

    Raises `InputError` for a path that does not exist or cannot be listed, a glob that matches
    nothing and a named file of another kind. A folder without prompt files is a warning only.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not isinstance(paths, Sequence) or not all(isinstance(p, str | os.PathLike) for p in paths):
        raise InputError(
            f"prompts are {shown(paths)}; allowed: a path, folder, glob or URL, or a list of them"
        )
    files: dict[str, PromptFile] = {}
    for path in paths:
        for file in _expand(os.fspath(path), warn):
            key = file.location.path
            if file.location.is_local:
                key = os.path.realpath(key)
            if key in files:
                warn(f"{file.name} is named twice; it is read once")
            files.setdefault(key, file)
    return list(files.values())


def _expand(path: str, warn: Callable[[str], None]) -> Iterator[PromptFile]:
    location = locate(path)
    try:
        info = location.filesystem.get_file_info(location.path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be reached ({error}); check the path and access"
        ) from error
    if info.type == fs.FileType.NotFound and _GLOB_CHARS.intersection(path):
        yield from _expand_glob(location, warn)
    elif info.type == fs.FileType.NotFound:
        raise InputError(f"{path}: no such file or folder; allowed: a file, a folder or a glob")
    elif info.type == fs.FileType.Directory:
        yield from _expand_folder(location, warn)
    else:
        file = _as_prompt_file(location, path)
        if file is None:
            raise InputError(f"{path}: not a file of prompts by its name; allowed: {_ALLOWED}")
        if location.is_local and not os.access(location.path, os.R_OK):
            raise InputError(f"{path}: no permission to read; change its mode or owner")
        yield file


def _expand_glob(location: Location, warn: Callable[[str], None]) -> Iterator[PromptFile]:
    places: list[Location] = []
    folders: list[Location] = []
    if not location.is_local:
        places = list(_remote_matches(location))
    else:
        deep = "**" in location.path  # then what is inside a folder is matched by itself
        for path in sorted(glob.glob(location.path, recursive=True)):
            if not os.path.isdir(path):
                places.append(Location(location.filesystem, path, path))
            elif not deep:
                folders.append(Location(location.filesystem, path, path))
    if not places and not folders:
        raise InputError(f"{location.text}: the glob matches nothing; check it, and quote it")
    if places:
        yield from _prompt_files(location.text, places, Counter(), warn)
    for folder in folders:
        yield from _expand_folder(folder, warn)


def _expand_folder(location: Location, warn: Callable[[str], None]) -> Iterator[PromptFile]:
    skipped: Counter[str] = Counter()
    places = _local_places(location, skipped) if location.is_local else _remote_places(location)
    yield from _prompt_files(location.text, places, skipped, warn)


def _prompt_files(
    text: str, places: Iterable[Location], skipped: Counter[str], warn: Callable[[str], None]
) -> Iterator[PromptFile]:
    """Those of `places` that are prompt files; warns of the others by count, and of none."""
    num_found = 0
    for place in places:
        file = _as_prompt_file(place, place.text)
        if file is None:
            skipped["files of other kinds"] += 1
        else:
            num_found += 1
            yield file
    counts = ", ".join(f"{what}: {count}" for what, count in sorted(skipped.items()) if count)
    if counts:
        warn(f"{text}: passed over ({counts})")
    if not num_found:
        warn(f"{text}: holds no file of prompts; looked for {_ALLOWED}")


def _local_places(folder: Location, skipped: Counter[str]) -> Iterator[Location]:
    found: list[str] = []

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be listed ({error.strerror})") from error

    for root, folders, names in os.walk(folder.path, onerror=fail):
        if "config.json" in names and "manifest" in folders:
            skipped["output folders of earlier renders"] += 1
            folders.clear()
            continue
        visible = [name for name in folders if not name.startswith(".")]
        skipped["links to folders"] += sum(os.path.islink(os.path.join(root, n)) for n in visible)
        folders[:] = visible
        for name in names:
            path = os.path.join(root, name)
            if name.startswith("."):
                continue
            if _is_plain_file(path):
                found.append(path)
            else:
                skipped["things that are not plain files"] += 1
    yield from (Location(folder.filesystem, path, path) for path in sorted(found))


def _is_plain_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False  # a dangling link


def _remote_places(folder: Location) -> Iterator[Location]:
    for path in _remote_files(folder, folder.path):
        inside = path.removeprefix(folder.path)
        if not any(level.startswith(".") for level in inside.split("/")):
            yield Location(folder.filesystem, path, _url_of(folder, path))


def _remote_files(location: Location, folder: str) -> list[str]:
    selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
    try:
        infos: Iterable[fs.FileInfo] = location.filesystem.get_file_info(selector)
    except OSError as error:
        raise InputError(f"{location.text}: cannot be listed ({error}); check access") from error
    return sorted(info.path for info in infos if info.type == fs.FileType.File)


def _remote_matches(location: Location) -> Iterator[Location]:
    levels = location.path.split("/")
    # The longest part without a wildcard is what is listed.
    num_fixed = next(i for i, level in enumerate(levels) if _GLOB_CHARS.intersection(level))
    if num_fixed == 0:
        raise InputError(f"{location.text}: wildcard in the bucket's name; name the bucket in full")
    for path in _remote_files(location, "/".join(levels[:num_fixed])):
        if _matches(path.split("/"), levels):
            yield Location(location.filesystem, path, _url_of(location, path))


def _matches(levels: list[str], pattern: list[str]) -> bool:
    """Whether the levels of a path match those of a glob; `**` stands for any number of levels."""
    if not pattern:
        return not levels
    if pattern[0] == "**":
        return any(_matches(levels[i:], pattern[1:]) for i in range(len(levels) + 1))
    if not levels or (levels[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(levels[0], pattern[0]) and _matches(levels[1:], pattern[1:])


def _url_of(location: Location, path: str) -> str:
    scheme, _, rest = location.text.partition("://")
    account = rest.partition("/")[0].partition("@")[2]
    container, _, key = path.partition("/")
    return f"{scheme}://{container}{'@' if account else ''}{account}/{key}"


def _as_prompt_file(location: Location, name: str) -> PromptFile | None:
    base = os.path.basename(location.path)
    stem, suffix = os.path.splitext(base)
    compression = COMPRESSIONS.get(suffix.lower())
    if compression is not None:
        stem, suffix = os.path.splitext(stem)
    kind = suffix.lower()
    if kind not in KINDS or (kind == ".parquet" and compression is not None):
        return None
    return PromptFile(location, _printable(name), _printable(stem), kind, compression)


def _printable(path: str) -> str:
    """File names that are not UTF-8 hold lone surrogates, which no output could carry."""
    return path.encode("utf-8", "replace").decode()
