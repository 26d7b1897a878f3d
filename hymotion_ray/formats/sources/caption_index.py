"""Which captions belong to which file: by path, or by the name that AMASS gives a take.

Knows how paths and AMASS names are compared, whatever release they come from. Does not know the
forms that captions are written in: `caption_files` does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from hymotion_ray.formats.sources.clip import Caption, SourceReject
from hymotion_ray.formats.sources.listing import SourceFile

# Sets that changed their names between AMASS releases, lower case: old -> new.
_SETS = {
    "biomotionlab_ntroje": "bmlrub",
    "mpi_hdm05": "hdm05",
    "mpi_limits": "poseprior",
    "mpi_mosh": "mosh",
    "ssm_synced": "ssm",
    "dfaust_67": "dfaust",
    "tcd_handmocap": "tcdhands",
    "transitions_mocap": "transitions",
    "eyes_japan_dataset": "eyesjapandataset",
}
_ENDS = re.compile(r"(_poses|_stageii)?(\.npz|\.npy)?$")


def amass_key(path: str) -> str:
    """Set, subject and take of a path in AMASS' form, equal for both releases."""
    parts = [p for p in path.replace("\\", "/").lower().split("/") if p not in ("", ".")][-3:]
    parts = [re.sub(r"[ ]+", "_", _ENDS.sub("", part)) for part in parts]
    return "/".join([_SETS.get(parts[0], parts[0]), *parts[1:]]) if parts else ""


def place_key(place: str) -> str:
    """A path or URL in the form in which two of them are compared."""
    return place if "://" in place else os.path.normpath(os.path.abspath(place))


@dataclass
class CaptionIndex:
    """Captions of many files, to be asked file by file. Picklable.

    by_place: path -> (clip name or "" for every clip, caption). by_take: AMASS key -> captions.
    seconds: AMASS key -> length of the take as the captions' makers saw it. rejects: rows that
    could not be read.
    """

    by_place: dict[str, list[tuple[str, Caption]]] = field(default_factory=dict)
    by_take: dict[str, list[Caption]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    rejects: list[SourceReject] = field(default_factory=list)

    @property
    def num_captions(self) -> int:
        """All captions, whether or not their files are there."""
        return sum(map(len, self.by_place.values())) + sum(map(len, self.by_take.values()))

    def of(self, file: SourceFile, clip: str = "") -> tuple[Caption, ...]:
        """Captions of one clip of a file; `clip` is what stands after the file's `#`."""
        places = [file.place, f"{file.path}/{file.member}"] if file.member else [file.place]
        found: list[Caption] = []
        for place in places:
            rows = self.by_place.get(place_key(place), [])
            found += [caption for name, caption in rows if name in ("", clip)]
        if file.kind == "npz":
            found += self.by_take.get(amass_key(file.place), [])
        return tuple(dict.fromkeys(found))

    def said_seconds(self, file: SourceFile) -> float | None:
        """How long the take is by the captions' makers, where they tell."""
        return self.seconds.get(amass_key(file.place)) if file.kind == "npz" else None

    def num_outside(self, files: Iterable[SourceFile]) -> int:
        """Captions whose files are not among these."""
        places: set[str] = set()
        takes: set[str] = set()
        for file in files:
            places.add(place_key(file.place))
            if file.member:
                places.add(place_key(f"{file.path}/{file.member}"))
            if file.kind == "npz":
                takes.add(amass_key(file.place))
        outside = [len(rows) for place, rows in self.by_place.items() if place not in places]
        outside += [len(rows) for take, rows in self.by_take.items() if take not in takes]
        return sum(outside)
