"""The npz files that this project writes, as sources: exact, on their own skeleton."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import torch

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.amass import frame_rate
from hymotion_ray.formats.sources.arrays import NpzFile
from hymotion_ray.formats.sources.clip import Caption, SourceClip
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.smpl_body import body_clip
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, NUM_JOINTS, PELVIS, Skeleton

SCHEMA_VERSION = 1


def read_hymotion_npz(file: SourceFile, arrays: NpzFile) -> Iterator[SourceClip]:
    """The one clip of a file with `rot6d`, `transl` and `rest`; its prompt becomes the caption."""
    version = np.asarray(arrays.read("hymotion_schema")).reshape(-1)
    if version.size != 1 or int(version[0]) != SCHEMA_VERSION:
        raise SourceError(
            f"schema version {version.tolist()}; this version reads {SCHEMA_VERSION}", "bad_version"
        )
    transl = arrays.finite("transl", (None, 3))
    rot6d = arrays.finite("rot6d", (len(transl), NUM_BODY_JOINTS, 6))
    skeleton = Skeleton(arrays.finite("rest", (NUM_JOINTS, 3)))
    prompt = arrays.scalar_text("prompt").strip()
    yield body_clip(
        file.name,
        rot6d_to_matrix(torch.from_numpy(rot6d)).numpy(),
        transl + skeleton.rest[PELVIS],
        frame_rate(arrays),
        source="hymotion-ray npz",
        up="y",
        licence=arrays.scalar_text("licence") or _licence(arrays) or "unknown",
        skeleton=skeleton,
        captions=(Caption(text=prompt),) if prompt else (),
        more={"model": arrays.scalar_text("model") or "unknown"},
    )


def _licence(arrays: NpzFile) -> str:
    """The licence in the file's meta, a JSON text."""
    try:
        meta = json.loads(arrays.scalar_text("meta") or "{}")
    except ValueError:
        return ""
    return str(meta.get("licence", "")) if isinstance(meta, dict) else ""
