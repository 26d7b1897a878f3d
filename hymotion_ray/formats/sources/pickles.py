"""Which of the formats that are stored as pickles a file is, read without running it."""

from __future__ import annotations

from collections.abc import Iterator

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources import aist, wham
from hymotion_ray.formats.sources.clip import SourceClip, SourceReject
from hymotion_ray.formats.sources.file_bytes import read_file
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.plain_pickle import read_plain_pickle

MAX_BYTES = 512 << 20


def read_pickle_file(file: SourceFile) -> Iterator[SourceClip | SourceReject]:
    """The clips of an AIST++ or WHAM file; `SourceError` (no_motion) for others."""
    content = read_plain_pickle(read_file(file.path, file.member, limit=MAX_BYTES))
    if isinstance(content, dict) and all(key in content for key in aist.KEYS):
        yield from aist.read_aist(file, content)
        return
    persons = list(content.values()) if isinstance(content, dict) else []
    if persons and all(isinstance(p, dict) and all(k in p for k in wham.KEYS) for p in persons):
        yield from wham.read_wham(file, content)
        return
    shown = ", ".join(str(key) for key in list(content)[:8]) if isinstance(content, dict) else ""
    raise SourceError(
        f"a pickled {type(content).__name__}{f' with {shown}' if shown else ''}; known are AIST++"
        " (smpl_poses, smpl_trans) and WHAM (a dict of persons with pose_world, trans_world)",
        "no_motion",
    )
