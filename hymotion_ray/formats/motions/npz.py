"""Motions as self-describing npz files, and the reading of those and of AMASS's.

Knows the keys that SMPL tools read (poses, trans, betas, gender, a frame rate), the keys that bring
back our own motion to the bit, and the change of axes between them. Never loads a pickle. Does not
know how to resample or rescale: a file is read as it is.

Shape letters: L frames.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.motions.npz_archive import pack, unpack
from hymotion_ray.motion.motion import MAX_FPS, Motion
from hymotion_ray.motion.poses import from_smpl, poses_of, relaxed_hands, rot6d_of_poses, to_smpl
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, Skeleton, generic_skeleton

Axis = Literal["y-up", "z-up"]
Flavour = Literal["hymotion", "upstream"]
Hands = Literal["mean", "flat"]
Arrays = dict[str, NDArray[np.generic]]

SCHEMA_VERSION = 1
NUM_BETAS = 16


def write_npz(
    motion: Motion,
    *,
    axis: Axis = "y-up",
    flavour: Flavour = "hymotion",
    hands: Hands = "mean",
    joints: bool = False,
) -> bytes:
    """The file's bytes; the same motion gives the same bytes.

    axis: of `poses` and `trans` only. "y-up" is the model's own frame, `trans` counted from the
    motion's own rest pelvis; "z-up" is AMASS's, `trans` counted from the SMPL rest pelvis, as the
    SMPL add-on for Blender and other AMASS readers expect it. `rot6d` and `transl` stay as they
    are.
    flavour: "upstream" writes only the keys of the released tool (gender, Rh, trans, poses, betas).
    hands: fingers in `poses`, the mean SMPL-H hand or flat ones. joints: also store the world
    joints (L,52,3). A frame rate below 30 is refused by the SMPL add-on, not here.
    """
    _check_option("axis", axis, ("y-up", "z-up"))
    _check_option("flavour", flavour, ("hymotion", "upstream"))
    _check_option("hands", hands, ("mean", "flat"))
    poses, trans = _smpl_arrays(motion, axis, hands)
    if flavour == "upstream":
        return pack(
            {
                "gender": np.array(["neutral"]),
                "Rh": poses[:, :3],
                "trans": trans,
                "poses": poses,
                "betas": np.zeros((1, NUM_BETAS), dtype=np.float32),
            }
        )
    fps = np.array(motion.fps, dtype=np.float64)
    arrays: Arrays = {
        "poses": poses,
        "trans": trans,
        "betas": np.zeros(NUM_BETAS, dtype=np.float32),
        "gender": np.array("neutral"),
        "mocap_frame_rate": fps,
        "mocap_framerate": fps,
        "up_axis": np.array("y" if axis == "y-up" else "z"),
        "num_frames": np.array(motion.num_frames, dtype=np.int64),
        **_origin(motion.meta),
        "meta": np.array(json.dumps(dict(motion.meta), ensure_ascii=False, sort_keys=True)),
        "hymotion_schema": np.array(SCHEMA_VERSION, dtype=np.int64),
        "rot6d": motion.rot6d.numpy().astype(np.float32),
        "transl": motion.transl.numpy().astype(np.float32),
        "rest": motion.skeleton.rest,
    }
    if joints:
        arrays["joints"] = motion.joints.numpy().astype(np.float32)
    return pack(arrays)


def read_npz(content: bytes, name: str = "npz") -> Motion:
    """A motion from the bytes of one of our files, of an AMASS file or of the released tool's.

    Ours come back to the bit, on their own skeleton. Others come with the first 22 joints of their
    pose, at their own frame rate, on the generic skeleton and not rescaled to it; without `up_axis`
    they are Z up, without a frame rate but with `Rh` they are the released tool's (Y up, 30 fps).
    `InputError`, which starts with `name`, for anything that is not a motion or not safe to read.
    """
    arrays = unpack(content, name)
    if "rot6d" in arrays:
        return _read_own(arrays, name)
    return _read_smpl(arrays, name)


def _check_option(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OutputError(f"npz option {name} is {value!r}; allowed: {', '.join(allowed)}")


def _smpl_arrays(motion: Motion, axis: Axis, hands: Hands) -> tuple[NDArray[np.float32], ...]:
    """`poses` (L,156) and `trans` (L,3) f4 in the frame of `axis`."""
    fingers = relaxed_hands() if hands == "mean" else None
    if axis == "z-up":
        return to_smpl(motion, "z", hands=fingers)
    return poses_of(motion, fingers), motion.transl.numpy().astype(np.float32)


def _origin(meta: Mapping[str, str | int | float]) -> Arrays:
    """Where the motion comes from; unknown texts are empty and an unknown seed is -1."""
    texts = {key: np.array(str(meta.get(key, ""))) for key in ("prompt", "model", "licence")}
    seed = meta.get("seed", -1)
    is_int64 = isinstance(seed, int) and -(2**63) <= seed < 2**63
    return {**texts, "seed": np.array(seed, dtype=np.int64) if is_int64 else np.array(str(seed))}


# --- reading --------------------------------------------------------------------------------------


def _read_own(arrays: Arrays, name: str) -> Motion:
    version = int(_scalar(arrays, "hymotion_schema", name))
    if not 1 <= version <= SCHEMA_VERSION:
        raise InputError(
            f"{name}: schema version {version} is unknown; this version reads 1..{SCHEMA_VERSION},"
            " update hymotion-ray or write the file again"
        )
    num_frames = len(_finite(arrays, "transl", (None, 3), name))
    rot6d = _finite(arrays, "rot6d", (num_frames, NUM_BODY_JOINTS, 6), name)
    skeleton = Skeleton(_finite(arrays, "rest", (52, 3), name))
    fps = _frame_rate(arrays, name)
    return Motion.from_rotations(
        _tensor(rot6d), _tensor(arrays["transl"]), skeleton, fps, _meta(arrays, name)
    )


def _read_smpl(arrays: Arrays, name: str) -> Motion:
    if "poses" not in arrays or "trans" not in arrays:
        raise InputError(
            f"{name}: no motion in it; a motion needs `poses` and `trans`, this file has"
            f" {', '.join(sorted(arrays)) or 'nothing'}"
        )
    num_frames = len(_finite(arrays, "trans", (None, 3), name))
    poses = _finite(arrays, "poses", (num_frames, None), name)
    width = poses.shape[1]
    if width not in (66, 72, 156, 165):
        raise InputError(
            f"{name}: `poses` is {width} wide; allowed: 66 (body), 72 (SMPL), 156 (SMPL-H),"
            " 165 (SMPL-X)"
        )
    upstream = "Rh" in arrays and not _has_frame_rate(arrays)
    fps = 30.0 if upstream else _frame_rate(arrays, name)
    up = str(arrays["up_axis"]) if "up_axis" in arrays else ("y" if upstream else "z")
    if up not in ("y", "z"):
        raise InputError(f"{name}: `up_axis` is {up!r}; allowed: y, z")
    skeleton = generic_skeleton()
    if up == "z":
        return from_smpl(poses, arrays["trans"], skeleton, fps, up="z")
    # Y up is the model's own frame: `trans` counts from our rest pelvis.
    return Motion.from_rotations(rot6d_of_poses(poses), _tensor(arrays["trans"]), skeleton, fps, {})


def _tensor(array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))


def _finite(
    arrays: Arrays, key: str, shape: tuple[int | None, ...], name: str
) -> NDArray[np.generic]:
    """The array under `key`, checked for kind, shape (None is free) and NaN."""
    if key not in arrays:
        raise InputError(f"{name}: `{key}` is missing; the file has {', '.join(sorted(arrays))}")
    array = arrays[key]
    fits = array.ndim == len(shape) and all(
        want in (None, got) for want, got in zip(shape, array.shape, strict=True)
    )
    if array.dtype.kind not in "fiu" or not fits or 0 in array.shape:
        wanted = ", ".join("frames" if want is None else str(want) for want in shape)
        raise InputError(
            f"{name}: `{key}` is {array.dtype} of shape {array.shape}; allowed: numbers of"
            f" ({wanted})"
        )
    if not np.isfinite(array).all():
        raise InputError(f"{name}: `{key}` holds NaN or infinite numbers")
    return array


def _has_frame_rate(arrays: Arrays) -> bool:
    return any(key in arrays for key in ("mocap_frame_rate", "mocap_framerate", "fps"))


def _frame_rate(arrays: Arrays, name: str) -> float:
    """The first of the three names that tools use, 0-d or (1,)."""
    for key in ("mocap_frame_rate", "mocap_framerate", "fps"):
        if key in arrays:
            fps = _scalar(arrays, key, name)
            if not 0 < fps <= MAX_FPS:
                raise InputError(f"{name}: `{key}` is {fps}; allowed: above 0 up to {MAX_FPS}")
            return fps
    raise InputError(
        f"{name}: no motion in it: no frame rate (mocap_frame_rate, mocap_framerate or fps)"
    )


def _scalar(arrays: Arrays, key: str, name: str) -> float:
    array = arrays.get(key)
    if array is None or array.size != 1 or array.dtype.kind not in "fiu":
        raise InputError(f"{name}: `{key}` is not one number")
    return float(array.reshape(()).item())


def _meta(arrays: Arrays, name: str) -> dict[str, str | int | float]:
    try:
        meta = json.loads(str(arrays.get("meta", "{}")))
    except ValueError as cause:
        raise InputError(f"{name}: `meta` is not JSON: {cause}") from cause
    if not isinstance(meta, dict) or any(
        not isinstance(v, str | int | float) for v in meta.values()
    ):
        raise InputError(f"{name}: `meta` is not an object of texts and numbers")
    return meta
