"""DeepMimic clips as sources: `deepmimic` reads them, this places them among the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hymotion_ray.errors import InputError, SourceError
from hymotion_ray.formats.sources.clip import SourceClip
from hymotion_ray.formats.sources.deepmimic import PARENTS, read_deepmimic
from hymotion_ray.formats.sources.file_bytes import local_path
from hymotion_ray.formats.sources.frame_rate import rate_of_step
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.rig import Rig

_UNEVEN = 0.01
_MAX_BYTES = 64 << 20


def read_deepmimic_file(file: SourceFile) -> Iterator[SourceClip]:
    """The one clip; where its steps differ, resampled by time at their median."""
    if file.size > _MAX_BYTES:
        raise SourceError(f"{file.size} bytes of JSON; at most {_MAX_BYTES}", "too_large")
    with local_path(file.path, file.member) as path:
        try:
            clip = read_deepmimic(path)
        except InputError as cause:
            raise SourceError(str(cause).replace(str(path), file.name), _code(cause)) from cause
        except RecursionError as cause:
            raise SourceError("JSON nested too deeply", "bad_syntax") from cause
    steps = np.diff(clip.times)
    step = float(np.median(steps))
    fps = rate_of_step(step, "a frame's step")
    notes: tuple[str, ...] = ()
    if np.abs(steps / step - 1).max() > _UNEVEN:
        clip = clip.resample(fps)
        notes = (f"steps of {steps.min():.4g} to {steps.max():.4g} s: resampled at {fps:g} fps",)
    frames = clip.world_frames()
    rig = Rig(
        names=frames.names,
        parents=PARENTS,
        rotations=frames.rotations,
        positions=frames.positions,
        fps=fps,
        warnings=notes,
    )
    yield rig.to_clip(
        file.name,
        source="DeepMimic",
        licence="unknown; the clips of the DeepMimic repository are MIT",
        unit_m=1.0,
        up="+y",
        more={"loops": clip.loops},
    )


def _code(error: InputError) -> str:
    words = {"not finite": "not_finite", "shape (0": "no_frames", "shape": "bad_shape"}
    return next((code for word, code in words.items() if word in str(error)), "bad_syntax")
