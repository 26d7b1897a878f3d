"""Motion-X .npy files: 322 numbers a frame of SMPL-X, Y up, 30 frames a second.

Knows that layout, and which other .npy motions hold no rotations of a body. Not tried on real
Motion-X files: they need a signed form.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.arrays import finite, read_npy
from hymotion_ray.formats.sources.clip import SourceClip
from hymotion_ray.formats.sources.file_bytes import read_file
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.smpl_body import smpl_clip

FPS = 30.0
# root_orient 3, pose_body 63, pose_hand 90, jaw 3, face_expr 50, face_shape 100, trans 3, betas 10
NUM_COLUMNS = 322
_POSE, _TRANS = slice(0, 66), slice(309, 312)
_LICENCE = "Motion-X: request form, non-commercial"


def read_npy_file(file: SourceFile) -> Iterator[SourceClip]:
    """The one clip of a (L,322) array; other shapes are refused by what they are."""
    content = read_file(file.path, file.member)
    array = read_npy(io.BytesIO(content), len(content), "the array")
    if array.ndim == 2 and array.shape[1] == NUM_COLUMNS:
        rows = finite(array, (None, NUM_COLUMNS), "the array")
        yield smpl_clip(
            file.name,
            rows[:, _POSE],
            rows[:, _TRANS],
            FPS,
            source="Motion-X",
            up="y",
            licence=_LICENCE,
            more={"body_model": "SMPL-X"},
        )
        return
    if array.ndim == 3 and array.shape[1:] in ((22, 3), (24, 3), (21, 3)):
        raise SourceError(
            f"joint positions of shape {array.shape}: rotations cannot be read off them; give the"
            " AMASS files, HumanML3D's index.csv names them",
            "positions_only",
        )
    if array.ndim == 2 and array.shape[1] in (263, 251, 272):
        raise SourceError(
            f"features of width {array.shape[1]} for another model; give the AMASS files that they"
            " were made from",
            "features_only",
        )
    raise SourceError(
        f"an array of shape {array.shape}; the only .npy motion read is Motion-X's (L, 322)",
        "no_motion",
    )
