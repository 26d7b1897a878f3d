"""Motion collections, file by file: what a file holds, or why it is not read.

One file a format; this one only says which. Knows no Ray and no shards. Everything streams: one
clip is in memory at a time (one `.pt` chunk, one archive member), and a bad clip never stops the
others.

    captions = load_captions(["HumanML3D/index.csv"])
    for file in list_sources(["AMASS", "cmu.zip"]):
        for clip in read_source(file, captions=captions):
            if isinstance(clip, SourceClip):
                motion, fit = to_motion(clip, skeleton)
"""

from hymotion_ray.formats.sources.caption_files import load_captions
from hymotion_ray.formats.sources.caption_index import CaptionIndex
from hymotion_ray.formats.sources.chunks import ChunkKeys
from hymotion_ray.formats.sources.clip import (
    BodyPose,
    Caption,
    SourceClip,
    SourceError,
    SourceReject,
)
from hymotion_ray.formats.sources.fit import to_motion, to_rotations
from hymotion_ray.formats.sources.listing import SourceFile, list_sources
from hymotion_ray.formats.sources.read import read_source

__all__ = [
    "BodyPose",
    "Caption",
    "CaptionIndex",
    "ChunkKeys",
    "SourceClip",
    "SourceError",
    "SourceFile",
    "SourceReject",
    "list_sources",
    "load_captions",
    "read_source",
    "to_motion",
    "to_rotations",
]
