"""AIST++ motions: SMPL poses at 60 frames a second, Y up, translation in units of their scaling.

Knows the keys of its pickles; `pickles` reads the bytes.
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

FPS = 60.0
KEYS = ("smpl_poses", "smpl_trans")


def read_aist(file: SourceFile, content: dict[Any, Any]) -> Iterator[SourceClip]:
    """The one clip; metres are `smpl_trans / smpl_scaling`."""
    poses = finite(np.asarray(content["smpl_poses"]), (None, 72), "smpl_poses")
    trans = finite(np.asarray(content["smpl_trans"]), (len(poses), 3), "smpl_trans")
    scaling = np.asarray(content.get("smpl_scaling", 1.0), dtype=np.float64).reshape(-1)
    if scaling.size != 1 or not np.isfinite(scaling).all() or scaling[0] <= 0:
        raise SourceError(f"`smpl_scaling` is {scaling.tolist()}; allowed: above 0", "bad_unit")
    yield smpl_clip(
        file.name,
        poses,
        trans / scaling[0],
        FPS,
        source="AIST++",
        up="y",
        licence="AIST++ annotations: CC BY 4.0",
        more={"body_model": "SMPL", "unit_m": float(1 / scaling[0])},
    )
