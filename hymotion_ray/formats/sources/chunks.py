"""`.pt` chunk files: a torch-saved list (or dict) of per-clip dicts, under names that a map tells.

There is no public standard; the default map knows the names in use, and another can be given. One
chunk is in memory at a time, its tensors mapped from the file where the file allows it. Does not
know how a torch file is loaded safely: `torch_file` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.arrays import finite
from hymotion_ray.formats.sources.clip import Caption, SourceClip, SourceReject
from hymotion_ray.formats.sources.frame_rate import checked_rate
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.smpl_body import body_clip, smpl_clip
from hymotion_ray.motion.features import NUM_FEATURES, decode_features
from hymotion_ray.motion.poses import SMPL_PELVIS
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS

Doubles = NDArray[np.float64]

_UNIT_SLACK = 0.2


@dataclass(frozen=True, kw_only=True)
class ChunkKeys:
    """Under which names a clip's dict holds what; the first name that is there counts.

    One of poses (axis-angle, L x 66 or more), rot6d (L,22,6 or L,132) and latent (the 201 features,
    not normalised) is needed; translation beside the first two.
    """

    poses: tuple[str, ...] = ("poses", "pose_aa", "smpl_poses", "pose")
    rot6d: tuple[str, ...] = ("rot6d", "poses_6d")
    latent: tuple[str, ...] = ("latent", "latents", "features")
    trans: tuple[str, ...] = ("trans", "transl", "smpl_trans", "translation")
    fps: tuple[str, ...] = ("fps", "mocap_framerate", "mocap_frame_rate", "frame_rate")
    text: tuple[str, ...] = ("text", "texts", "caption", "captions", "prompt")
    name: tuple[str, ...] = ("name", "id", "clip_id", "key")
    licence: tuple[str, ...] = ("licence", "license")
    default_fps: float = 30.0
    """Where a clip names no rate."""
    up: str | None = None
    """Vertical axis of poses and rot6d, "y" or "z"; None: seen by the pose of each clip."""


def read_chunk(
    file: SourceFile, content: Any, keys: ChunkKeys
) -> Iterator[SourceClip | SourceReject]:
    """Every clip of a chunk, `<file>#<name or number>`; a bad one does not stop the others."""
    seen: set[str] = set()
    for number, (key, entry) in enumerate(_entries(content, keys)):
        named = _first(entry, keys.name) if isinstance(entry, Mapping) else None
        label = key if named is None else str(named)
        name = f"{file.name}#{label}"
        if name in seen:
            name = f"{name}~{number}"
        seen.add(name)
        try:
            yield _clip(name, entry, keys)
        except SourceError as error:
            yield SourceReject(name=name, code=error.code, message=str(error))


def is_chunk(content: Any, keys: ChunkKeys) -> bool:
    """Whether a torch file's content looks like clips under these names."""
    first = next((entry for _, entry in _entries(content, keys)), None)
    return isinstance(first, Mapping) and _has_motion(first, keys)


def _has_motion(entry: Mapping[Any, Any], keys: ChunkKeys) -> bool:
    return any(_first(entry, names) is not None for names in (keys.poses, keys.rot6d, keys.latent))


def _entries(content: Any, keys: ChunkKeys) -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping) and _has_motion(content, keys):
        yield "0", content
    elif isinstance(content, Mapping):
        yield from ((str(key), entry) for key, entry in content.items())
    elif isinstance(content, list | tuple):
        yield from ((str(number), entry) for number, entry in enumerate(content))


def _first(entry: Mapping[Any, Any], names: tuple[str, ...]) -> Any:
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _clip(name: str, entry: Any, keys: ChunkKeys) -> SourceClip:
    if not isinstance(entry, Mapping) or not _has_motion(entry, keys):
        shown = ", ".join(map(str, list(entry)[:8])) if isinstance(entry, Mapping) else ""
        raise SourceError(
            f"a {type(entry).__name__} {f'with {shown} ' if shown else ''}holds none of"
            f" {', '.join(keys.poses + keys.rot6d + keys.latent)}",
            "no_motion",
        )
    rate = _first(entry, keys.fps)
    fps = keys.default_fps if rate is None else checked_rate(rate, "fps")
    licence = str(_first(entry, keys.licence) or "unknown")
    captions = _captions(_first(entry, keys.text))
    notes = {"fps_note": f"{keys.default_fps:g} taken: the clip names none"} if rate is None else {}
    poses = _first(entry, keys.poses)
    if poses is not None:
        table = finite(_flat(poses, "poses"), (None, None), "poses")
        trans = finite(_numbers(_first(entry, keys.trans), "trans"), (len(table), 3), "trans")
        return smpl_clip(
            name,
            table,
            trans,
            fps,
            source="chunk",
            up=keys.up,
            licence=licence,
            captions=captions,
            more=notes,
        )
    rot6d, transl, up = _six_numbers(entry, keys)
    return body_clip(
        name,
        rot6d_to_matrix(torch.from_numpy(rot6d)).numpy(),
        transl + np.array(SMPL_PELVIS),
        fps,
        source="chunk",
        up=up,
        licence=licence,
        captions=captions,
        more=notes,
    )


def _six_numbers(entry: Mapping[Any, Any], keys: ChunkKeys) -> tuple[Doubles, Doubles, str | None]:
    """Rotations (L,22,6), translation (L,3) and the vertical axis of rot6d or of features."""
    latent = _first(entry, keys.latent)
    up: str | None = keys.up
    if latent is not None and _first(entry, keys.rot6d) is None:
        rows = finite(_numbers(latent, "latent"), (None, NUM_FEATURES), "latent")
        rotations, place = decode_features(torch.from_numpy(rows))
        rot6d, transl, up = rotations.numpy(), place.numpy(), "y"
    else:
        flat = _flat(_first(entry, keys.rot6d), "rot6d")
        rows = finite(flat, (None, 6 * NUM_BODY_JOINTS), "rot6d")
        rot6d = rows.reshape(len(rows), NUM_BODY_JOINTS, 6)
        transl = finite(_numbers(_first(entry, keys.trans), "trans"), (len(rows), 3), "trans")
    lengths = np.linalg.norm(rot6d.reshape(-1, 3, 2), axis=1)
    if abs(float(np.median(lengths)) - 1) > _UNIT_SLACK:
        raise SourceError(
            f"columns of rot6d are {float(np.median(lengths)):.3g} long, not 1: they are normalised"
            " by statistics; undo that first",
            "normalised",
        )
    return rot6d, transl, up


def _numbers(value: Any, what: str) -> NDArray[Any]:
    if value is None:
        raise SourceError(f"no {what} in the clip", "no_motion")
    if isinstance(value, torch.Tensor):
        value = value.detach().float() if value.dtype == torch.bfloat16 else value.detach()
        return value.numpy()
    return np.asarray(value)


def _flat(value: Any, what: str) -> NDArray[Any]:
    """Frames with all joints' numbers in one row."""
    array = _numbers(value, what)
    return array.reshape(len(array), -1) if array.ndim > 2 and len(array) else array


def _captions(value: Any) -> tuple[Caption, ...]:
    texts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    return tuple(Caption(text=t.strip()) for t in texts if isinstance(t, str) and t.strip())
