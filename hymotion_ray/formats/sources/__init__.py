"""Motion collections, file by file: what a file holds, or why it is not read.

One file a format; this one only says which. Knows no Ray and no shards. Everything streams: one
clip is in memory at a time (one `.pt` chunk, one archive member), and a bad clip never stops the
others.

    for file in list_sources(["AMASS", "cmu.zip"]):
        for clip in read_source(file, captions=captions):
            if isinstance(clip, SourceClip):
                motion, fit = to_motion(clip, skeleton)
"""

from hymotion_ray.formats.sources.clip import (
    BodyPose,
    Caption,
    SourceClip,
    SourceError,
    SourceReject,
)
from hymotion_ray.formats.sources.listing import SourceFile, list_sources

__all__ = [
    "BodyPose",
    "Caption",
    "SourceClip",
    "SourceError",
    "SourceFile",
    "SourceReject",
    "list_sources",
]
