"""BVH of any rig: forward kinematics over what `bvh_text` reads, in the file's own units.

Does not know what joints mean, nor axes and units: `rig` finds those.
"""

from __future__ import annotations

from collections.abc import Iterator

from hymotion_ray.formats.sources.bvh_text import parse_bvh
from hymotion_ray.formats.sources.clip import SourceClip
from hymotion_ray.formats.sources.file_bytes import read_file
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.rig import Rig, world_frames

MAX_TEXT_BYTES = 512 << 20


def read_bvh_file(file: SourceFile) -> Iterator[SourceClip]:
    """The one clip of a BVH file."""
    content = read_file(file.path, file.member, limit=MAX_TEXT_BYTES)
    yield bvh_rig(content).to_clip(file.name, source="BVH")


def bvh_rig(content: bytes) -> Rig:
    """World frames of every joint at every frame, in the file's units and axes.

    `SourceError` with a code for what is malformed.
    """
    text = parse_bvh(content)
    return Rig(
        names=text.names,
        parents=text.parents,
        fps=text.fps,
        warnings=text.warnings,
        **world_frames(text.parents, text.rotations, text.positions),
    )
