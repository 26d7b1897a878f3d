"""The captions of a run: those of --captions, and caption files that lie among the sources.

Ray-free. Which clip a caption belongs to, the index says; rows that cannot be read and rows whose
files are not among the sources are counted and told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hymotion_ray.engine.dataset.reader import expand, is_below
from hymotion_ray.errors import InputError
from hymotion_ray.formats.atomic import Store
from hymotion_ray.formats.sources import CaptionIndex, SourceFile, list_sources, load_captions
from hymotion_ray.formats.sources.caption_index import place_key

REJECTS_FILE = "caption_rejects.jsonl"
_TABLES = (".csv", ".json")


@dataclass(frozen=True)
class Captions:
    """Captions, and what became of the rows that held them."""

    index: CaptionIndex
    files: tuple[str, ...]
    """Caption files that were read."""
    outside: int
    """Captions whose files are not among the sources."""

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready counts."""
        return {
            "files": list(self.files),
            "captions": self.index.num_captions,
            "outside": self.outside,
            "unreadable": len(self.index.rejects),
        }

    def write_rejects(self, store: Store) -> None:
        """Write caption_rejects.jsonl, one line a row that could not be read; none without any."""
        lines = [
            json.dumps({"name": r.name, "code": r.code, "message": r.message}, ensure_ascii=False)
            for r in self.index.rejects
        ]
        if lines:
            store.write_bytes(REJECTS_FILE, ("\n".join(lines) + "\n").encode())


def read_captions(
    given: str | None,
    sources: Sequence[str],
    say: Callable[[str], None],
    out: str | None = None,
) -> Captions | None:
    """All captions that there are for `sources`, what lies in `out` aside; None without any.

    `InputError` when the file given cannot be read at all; a file found among the sources that
    cannot be is only told.
    """
    paths = [given] if given else []
    known = {place_key(path) for path in paths}
    for file in _files(sources, out):
        is_table = file.name.lower().endswith(_TABLES) and not file.member
        if file.kind == "captions" and is_table and place_key(file.path) not in known:
            known.add(place_key(file.path))
            paths.append(file.path)
    index = CaptionIndex()
    read: list[str] = []
    for path in paths:
        try:
            _merge(index, load_captions([path]))
        except InputError as error:
            if path == given:
                raise
            say(f"captions among the sources are left out: {error}")
            continue
        read.append(path)
    if not read:
        return None
    captions = Captions(index, tuple(read), index.num_outside(_files(sources, out)))
    say(
        f"{index.num_captions} captions of {', '.join(read)}: {captions.outside} for files that are"
        f" not among the sources, {len(index.rejects)} rows unreadable"
    )
    return captions


def _files(sources: Sequence[str], out: str | None) -> Iterable[SourceFile]:
    files = list_sources(expand(sources))
    return (file for file in files if out is None or not is_below(file, out))


def _merge(index: CaptionIndex, more: CaptionIndex) -> None:
    for place, rows in more.by_place.items():
        index.by_place.setdefault(place, []).extend(rows)
    for take, captions in more.by_take.items():
        index.by_take.setdefault(take, []).extend(captions)
    index.seconds.update(more.seconds)
    index.rejects.extend(more.rejects)
