"""WHAM's results: for each person seen in a film SMPL poses in the world, with gaps in time.

Knows the keys of its joblib files; `pickles` reads the bytes. A person who is lost and found again
becomes several clips, since nothing is known of the time between. Not tried on real files: the test
file is made from the keys that its demo writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.arrays import finite
from hymotion_ray.formats.sources.clip import SourceClip, SourceReject
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.smpl_body import smpl_clip

FPS = 30.0
KEYS = ("pose", "trans")


def read_wham(file: SourceFile, content: dict[Any, Any]) -> Iterator[SourceClip | SourceReject]:
    """Each person's unbroken stretches: `<file>#<person>`, then `@<first frame>` where several."""
    for person, results in content.items():
        name = f"{file.name}#{person}"
        try:
            yield from _person(name, results)
        except SourceError as error:
            yield SourceReject(name=name, code=error.code, message=str(error))


def _person(name: str, results: dict[str, Any]) -> Iterator[SourceClip]:
    if "pose_world" not in results or "trans_world" not in results:
        raise SourceError(
            "poses in the camera's axes only; run WHAM with its world trajectory", "camera_frame"
        )
    poses = finite(np.asarray(results["pose_world"]), (None, 72), "pose_world")
    trans = finite(np.asarray(results["trans_world"]), (len(poses), 3), "trans_world")
    frames = np.asarray(results.get("frame_ids", np.arange(len(poses)))).reshape(-1)
    if len(frames) != len(poses) or frames.dtype.kind not in "iu":
        raise SourceError(
            f"{len(frames)} frame_ids beside {len(poses)} poses; allowed: one a frame", "bad_shape"
        )
    runs = np.split(np.arange(len(frames)), np.flatnonzero(np.diff(frames) != 1) + 1)
    for run in runs:
        yield smpl_clip(
            name if len(runs) == 1 else f"{name}@{int(frames[run[0]])}",
            poses[run],
            trans[run],
            FPS,
            source="WHAM",
            up="y",
            licence="unknown (of the film)",
            more={"body_model": "SMPL", "fps_note": "30 taken: the file does not name the film's"},
        )
