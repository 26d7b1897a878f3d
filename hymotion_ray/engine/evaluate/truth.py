"""The true motion of a clip, found by its name. Ray-free."""

from __future__ import annotations

from pathlib import PurePosixPath

from hymotion_ray.engine.evaluate.source import Source
from hymotion_ray.errors import HyMotionError
from hymotion_ray.formats.motions import FORMATS, decode_motion
from hymotion_ray.motion.motion import Motion


def truth_of(source: Source, name: str) -> Motion | None:
    """The motion of `source` that has the clip's relative name, whatever its suffix; None without.

    One that cannot be read counts as missing: it is no fault of the clip's.
    """
    stem = name.removesuffix(PurePosixPath(name).suffix)
    for suffix, entry in FORMATS.items():
        wanted = f"{stem}.{suffix}"
        if entry.read is None or not source.store.exists(wanted):
            continue
        try:
            return decode_motion(source.store.read_bytes(wanted), suffix, wanted)
        except HyMotionError:
            return None
    return None
