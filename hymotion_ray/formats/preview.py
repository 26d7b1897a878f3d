"""Motion files or output folders as one page, film or picture strip.

Knows where a render's output folder keeps its clips: files, or Parquet shards with an `npz` column.
Does not know manifests: what lies in the folder is shown.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.atomic import Store, open_store
from hymotion_ray.formats.html import write_html
from hymotion_ray.formats.motions import FORMATS, decode_motion, is_motion_file, load_motion
from hymotion_ray.formats.video import write_mp4, write_png
from hymotion_ray.motion.motion import Motion

# The readable formats, best first: a clip that lies there in several is shown once.
_READABLE = tuple(entry.name for entry in FORMATS.values() if entry.read is not None)


def write_preview(
    sources: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], *, limit: int = 24
) -> int:
    """Show the first `limit` clips of files and folders in `out`; returns how many there are.

    `out` ends in .html, .mp4 or .png (any case). `InputError` for a source without motions.
    """
    suffix = PurePosixPath(os.fspath(out)).suffix.lower()
    if suffix not in (".html", ".mp4", ".png"):
        raise OutputError(f"{os.fspath(out)}: unknown kind {suffix!r}; allowed: .html, .mp4, .png")
    if limit < 1:
        raise OutputError(f"limit is {limit}; allowed: 1 or more")
    motions = list(islice(iter_motions(sources), limit))
    if suffix == ".html":
        first = os.fspath(sources[0])
        write_html(motions, out, title=PurePosixPath(first.rstrip("/")).name or first)
    elif suffix == ".mp4":
        write_mp4(motions, out)
    else:
        write_png(motions, out)
    return len(motions)


def iter_motions(sources: Sequence[str | os.PathLike[str]]) -> Iterator[Motion]:
    """The motions of files and folders in order, read one at a time."""
    for source in sources:
        if is_motion_file(source):
            yield load_motion(source)
        else:
            yield from _folder_motions(os.fspath(source))


def _folder_motions(folder: str) -> Iterator[Motion]:
    if "://" not in folder and not Path(folder).is_dir():
        raise InputError(
            f"{folder}: no such folder, nor a motion file by its name; readable: a folder, or a "
            f"file that ends in {', '.join('.' + name for name in _READABLE)}"
        )
    store = open_store(folder)
    names = _clips(store)
    if names:
        for name in names:
            suffix = PurePosixPath(name).suffix.lower().removeprefix(".")
            yield decode_motion(store.read_bytes(name), suffix, store.url(name))
        return
    shards = store.list_files("shards", suffix=".parquet")
    if not shards:
        raise InputError(f"{folder}: no motion in it; readable: {', '.join(_READABLE)}")
    for name in shards:
        for row, content in enumerate(_npz_column(store, name)):
            yield decode_motion(content, "npz", f"{store.url(name)}#{row}")


def _npz_column(store: Store, name: str) -> list[bytes]:
    """The clips of a shard as `render --layout shards` writes it."""
    content = io.BytesIO(store.read_bytes(name))
    try:
        if "npz" not in pq.read_schema(content).names:
            raise InputError(
                f"{store.url(name)}: no column 'npz'; only shards of `render` can be shown, shards "
                "of `ingest` hold motions in another form (its report.html shows some)"
            )
        content.seek(0)
        return pq.read_table(content, columns=["npz"])["npz"].drop_null().to_pylist()
    except pa.ArrowException as error:
        raise InputError(f"{store.url(name)}: not a Parquet file, or damaged: {error}") from error


def _clips(store: Store) -> list[str]:
    """Names of the motion files below a folder, each clip once, in its best format."""
    best: dict[str, tuple[int, str]] = {}
    for name in store.list_files():
        suffix = PurePosixPath(name).suffix.lower().removeprefix(".")
        if suffix not in _READABLE:
            continue
        stem = name[: -len(suffix) - 1]
        rank = (_READABLE.index(suffix), name)
        best[stem] = min(rank, best.get(stem, rank))
    return [name for _, (_, name) in sorted(best.items())]
