"""GVHMR's results: SMPL-X parameters of one person, in the world and in the camera.

Knows its keys; `torch_files` reads the bytes. Only the world's are taken. Not tried on real files:
the test file is made from the keys that its demo writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.arrays import finite
from hymotion_ray.formats.sources.clip import SourceClip
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.smpl_body import smpl_clip

FPS = 30.0
KEY, CAMERA_KEY = "smpl_params_global", "smpl_params_incam"


def read_gvhmr(file: SourceFile, content: dict[str, Any]) -> Iterator[SourceClip]:
    """The one clip: global_orient (L,3), body_pose (L,63) and transl (L,3), Y up."""
    if not isinstance(content.get(KEY), dict):
        raise SourceError(
            f"`{CAMERA_KEY}` only: the camera's axes, without a floor", "camera_frame"
        )
    params = content[KEY]
    parts = {}
    for name, width in (("global_orient", 3), ("body_pose", 63), ("transl", 3)):
        if name not in params:
            raise SourceError(f"`{KEY}` has no `{name}`", "bad_syntax")
        parts[name] = finite(np.asarray(params[name]), (None, width), name)
    if len({len(part) for part in parts.values()}) > 1:
        lengths = {name: len(part) for name, part in parts.items()}
        raise SourceError(f"parts of unlike length: {lengths}", "bad_shape")
    yield smpl_clip(
        file.name,
        np.concatenate([parts["global_orient"], parts["body_pose"]], axis=1),
        parts["transl"],
        FPS,
        source="GVHMR",
        up="y",
        licence="unknown (of the film); GVHMR itself is non-commercial",
        more={"body_model": "SMPL-X", "fps_note": "30 taken: GVHMR resamples films to it"},
    )
