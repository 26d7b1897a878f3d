"""ROMP's npz: one pickled dict of what was seen in one image.

Knows enough to say truly why it is not ingested: bodies stand before the camera, in its axes and
one frame each, so that there is neither a floor nor a motion.
"""

from __future__ import annotations

from collections.abc import Iterator

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.arrays import NpzFile
from hymotion_ray.formats.sources.clip import SourceClip
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.plain_pickle import read_plain_pickle


def read_romp(_file: SourceFile, arrays: NpzFile) -> Iterator[SourceClip]:
    """Refuses with the reason: camera_frame, or what the pickle asks for, or no ROMP at all."""
    content = read_plain_pickle(arrays.read_object_bytes("results"))
    found = content.item() if getattr(content, "shape", None) == () else content
    if isinstance(found, dict) and "cam_trans" in found and "body_pose" in found:
        count = len(found["body_pose"])
        raise SourceError(
            f"ROMP output of one image: {count} bodies in the camera's axes, without floor or"
            " motion; use a method that follows a body in the world (WHAM, GVHMR)",
            "camera_frame",
        )
    raise SourceError("`results` is a pickled object of another kind than ROMP's", "no_motion")
    yield  # a reader is a generator, even one that only refuses
