"""Maps world joint frames of another humanoid onto our skeleton.

Knows how a pose carries over between bodies of different proportions: limbs keep their direction
and twist, the trunk's bend is shared among our spine joints, and the root moves by the ratio of leg
lengths. Does not know any file format; a reader supplies `WorldFrames` for `retarget`, or world
frames and a `Humanoid` for `retarget_humanoid`, which finds by itself how the rig stands at rest.

Shape letters: L frames, S source joints, 22 our body joints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hymotion_ray.errors import InputError
from hymotion_ray.motion.ground import joint_floor
from hymotion_ray.motion.humanoid import Humanoid
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rest_frames import BONES, between, bone, rest_frames, turns_between, unit
from hymotion_ray.motion.rotations import matrix_to_rot6d
from hymotion_ray.motion.skeleton import (
    HIPS,
    JOINT_NAMES,
    NUM_BODY_JOINTS,
    PARENTS,
    Skeleton,
)

Array = NDArray[np.float64]

# Which source joint drives which of ours. What is not here keeps its parent's world rotation, or,
# in the trunk and neck, a share of the rotation between its driven neighbours.
DRIVERS: dict[str, str] = {"Pelvis": "root", "Spine3": "chest", "Head": "neck"} | {
    f"{letter}_{part}": f"{side}_{part.lower()}"
    for letter, side in (("L", "left"), ("R", "right"))
    for part in ("Hip", "Knee", "Ankle", "Shoulder", "Elbow", "Wrist")
}
# Limb bones whose direction carries over even where the rest poses differ (arms out, arms down).
LIMB_BONES: dict[str, str] = {
    f"{letter}_{part}": f"{letter}_{end}"
    for letter in "LR"
    for part, end in (
        ("Hip", "Knee"), ("Knee", "Ankle"), ("Shoulder", "Elbow"), ("Elbow", "Wrist")
    )
}  # fmt: skip
# Joints of ours between two driven ones, and their share of the turn from the first to the second.
SHARES: dict[str, tuple[str, str, float]] = {
    "Spine1": ("Pelvis", "Spine3", 1 / 3),
    "Spine2": ("Pelvis", "Spine3", 2 / 3),
    "Neck": ("Spine3", "Head", 1 / 2),
}
_BODY = JOINT_NAMES[:NUM_BODY_JOINTS]


@dataclass(frozen=True)
class WorldFrames:
    """World frames of a source skeleton, Y up, metres.

    names (S); rest (S,3) joint positions of the pose in which every rotation is the identity,
    facing +Z with +X the left; rotations (L,S,3,3) from that rest pose; positions (L,S,3).
    """

    names: tuple[str, ...]
    rest: Array
    rotations: Array
    positions: Array


@dataclass(frozen=True)
class Retargeted:
    """A motion on our skeleton, and how well it fits.

    scale: our leg over the source's. fit_error: mean distance in metres between the driven limb
    joints of ours and of the source times scale, both measured from the middle of the hips.
    """

    motion: Motion
    scale: float
    fit_error: float


def retarget(
    frames: WorldFrames,
    skeleton: Skeleton,
    fps: float,
    drivers: Mapping[str, str] = DRIVERS,
) -> Retargeted:
    """Put `frames` on `skeleton`, on the floor y = 0; over the floor it stays where it was.

    The floor is found as in decoding without a mesh: the lowest ankle or toe of the clip, less its
    height above the sole. `InputError` when a driving joint is missing from the source.
    """
    missing = sorted({s for s in drivers.values() if s not in frames.names})
    if missing:
        raise InputError(
            f"the source skeleton lacks {', '.join(missing)}; it has {', '.join(frames.names)}"
        )
    rest = skeleton.rest[:NUM_BODY_JOINTS].astype(np.float64)
    world = _world_rotations(frames, rest, drivers)
    local = torch.from_numpy(_local_rotations(world))
    posed = forward_kinematics(local, skeleton)[1][:, :NUM_BODY_JOINTS].numpy()
    scale = skeleton.leg_length / _leg_length(frames, drivers)
    hips = [frames.names.index(drivers[_BODY[j]]) for j in HIPS]
    source_hips = frames.positions[:, hips].mean(axis=1, keepdims=True)
    our_hips = posed[:, HIPS].mean(axis=1, keepdims=True)
    transl = torch.from_numpy((scale * source_hips - our_hips)[:, 0])
    transl[:, 1] -= joint_floor(torch.from_numpy(posed) + transl[:, None], skeleton)
    limbs = [j for j, name in enumerate(_BODY) if name[1] == "_" and name in drivers]
    sources = [frames.names.index(drivers[_BODY[j]]) for j in limbs]
    gaps = posed[:, limbs] - our_hips - scale * (frames.positions[:, sources] - source_hips)
    motion = Motion.from_rotations(matrix_to_rot6d(local), transl, skeleton, fps)
    return Retargeted(motion, scale, float(np.linalg.norm(gaps, axis=-1).mean()))


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """How well a motion fits the clip it was made from.

    scale: our leg over the source's; leg_length: of the source, metres. mean_error_m, max_error_m:
    distance of our limb joints and head from where the source's would be if its trunk, shoulders,
    neck and limbs had our lengths, both seen from the middle of the hips: mean over joints and
    frames, and the largest mean of one frame. So a stylised body with short legs fits as well as a
    tall one; what shows is a trunk that bends otherwise, and joints that were taken for others.
    mean_angle_deg: mean angle between our limb bones and the source's. missing: joints of ours
    without a source joint. by_rest: whether the rig's rest pose told how its frames sit, see
    `rest_frames`. dropped_frames: leading frames of the source that were left out.
    """

    mean_error_m: float
    max_error_m: float
    mean_angle_deg: float
    scale: float
    leg_length: float
    missing: tuple[str, ...] = ()
    by_rest: bool = True
    dropped_frames: int = 0


def retarget_humanoid(
    rotations: Array, positions: Array, humanoid: Humanoid, skeleton: Skeleton, fps: float
) -> tuple[Motion, FitReport]:
    """Put a rig's motion on `skeleton`, on the floor y = 0; over the floor it stays where it was.

    rotations (L,S,3,3), positions (L,S,3): world, metres, Y up, at `fps`. Limbs point exactly as
    the source's do; trunk and neck share the bend of the source's, whatever their number of joints;
    the middle of the hips moves by the ratio of leg lengths.
    """
    rest = skeleton.rest[:NUM_BODY_JOINTS].astype(np.float64)
    fixed, by_rest = rest_frames(rotations, positions, humanoid, rest)
    world, missing = _humanoid_rotations(rotations, positions, humanoid, rest, fixed)
    local = torch.from_numpy(_local_rotations(world))
    posed = forward_kinematics(local, skeleton)[1][:, :NUM_BODY_JOINTS].numpy()
    leg_length = humanoid.leg_length(positions)
    scale = skeleton.leg_length / leg_length
    source_hips = positions[:, [humanoid.joints[_BODY[j]] for j in HIPS]].mean(axis=1)
    our_hips = posed[:, HIPS].mean(axis=1)
    transl = torch.from_numpy(scale * source_hips - our_hips)
    transl[:, 1] -= joint_floor(torch.from_numpy(posed) + transl[:, None], skeleton)
    mean_error, max_error, angle = _fit(posed, positions, humanoid, rest)
    motion = Motion.from_rotations(matrix_to_rot6d(local), transl, skeleton, fps)
    return motion, FitReport(
        mean_error_m=mean_error,
        max_error_m=max_error,
        mean_angle_deg=angle,
        scale=scale,
        leg_length=leg_length,
        missing=missing,
        by_rest=by_rest,
    )


def _humanoid_rotations(
    rotations: Array, positions: Array, humanoid: Humanoid, rest: Array, fixed: dict[str, Array]
) -> tuple[Array, tuple[str, ...]]:
    """(L,22,3,3) world rotations of our joints, and the joints that have no source."""
    turned = {
        name: rotations[:, joint] @ fixed[name]
        for name, joint in humanoid.joints.items()
        if name != "Spine3"
    }
    pelvis = turned["Pelvis"]
    spine = [rotations[:, j] @ fixed[f"spine:{k}"] for k, j in enumerate(humanoid.spine)]
    neck = [rotations[:, j] @ fixed[f"neck:{k}"] for k, j in enumerate(humanoid.neck)]
    turned["Spine3"] = spine[-1]
    for name, share in (("Spine1", 1 / 3), ("Spine2", 2 / 3)):
        turned[name] = _along([pelvis, *spine], share)
    turned["Head"] = neck[-1] if neck else spine[-1]
    turned["Neck"] = _along([spine[-1], *neck], 1 / 2)
    for name, end in BONES.items():
        along = unit(positions[:, humanoid.joints[end]] - positions[:, humanoid.joints[name]])
        turned[name] = turns_between(turned[name] @ bone(rest, name), along) @ turned[name]
    missing = [] if neck else ["Neck", "Head"]
    for j, name in enumerate(_BODY):
        if name not in turned:
            missing.append(name)
            turned[name] = turned[_BODY[PARENTS[j]]]
    return np.stack([turned[name] for name in _BODY], axis=1), tuple(missing)


def _along(chain: list[Array], share: float) -> Array:
    """Rotations (L,3,3) at a share of the way along a chain of joints, equal steps between them."""
    place = share * (len(chain) - 1)
    first = min(int(place + 1e-9), max(len(chain) - 2, 0))
    if place - first < 1e-9:
        return chain[first]
    return between(chain[first], chain[first + 1], place - first)


def _fit(
    posed: Array, source: Array, humanoid: Humanoid, rest: Array
) -> tuple[float, float, float]:
    """Mean and largest joint distance in metres, and mean angle of limb bones in degrees.

    posed (L,22,3): ours; source (L,S,3); rest (22,3): ours, for its lengths.
    """
    at = {name: posed[:, j] for j, name in enumerate(_BODY)}
    ours = {name: rest[j] for j, name in enumerate(_BODY)}
    theirs = {name: source[:, joint] for name, joint in humanoid.joints.items()}
    if humanoid.neck:
        theirs["Head"] = source[:, humanoid.neck[-1]]
    wanted = {f"{side}_Hip": at[f"{side}_Hip"] for side in "LR"}
    hips, shoulders = (_middle(theirs, part) for part in ("Hip", "Shoulder"))
    our_hips, our_shoulders = (_middle(ours, part) for part in ("Hip", "Shoulder"))
    top = _middle(at, "Hip") + _sized(shoulders - hips, our_shoulders - our_hips)
    for side in "LR":
        name = f"{side}_Shoulder"
        wanted[name] = top + _sized(theirs[name] - shoulders, ours[name] - our_shoulders)
    if "Head" in theirs:
        wanted["Head"] = top + _sized(theirs["Head"] - shoulders, ours["Head"] - our_shoulders)
    angles = []
    for name, end in BONES.items():
        bones, our_bone = theirs[end] - theirs[name], ours[end] - ours[name]
        wanted[end] = wanted[name] + unit(bones) * np.linalg.norm(our_bone)
        cosine = (unit(at[end] - at[name]) * unit(bones)).sum(axis=-1)
        angles.append(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    gaps = np.stack([np.linalg.norm(at[name] - place, axis=-1) for name, place in wanted.items()])
    return float(gaps.mean()), float(gaps.mean(axis=0).max()), float(np.mean(angles))


def _middle(places: Mapping[str, Array], part: str) -> Array:
    return (places[f"L_{part}"] + places[f"R_{part}"]) / 2


def _sized(vectors: Array, ours: Array) -> Array:
    """Vectors (L,3) of another body, scaled so that their median length is that of ours (3,)."""
    length = float(np.median(np.linalg.norm(vectors, axis=-1)))
    return vectors * (float(np.linalg.norm(ours)) / max(length, 1e-9))


def _world_rotations(frames: WorldFrames, rest: Array, drivers: Mapping[str, str]) -> Array:
    """(L,22,3,3) world rotations of our joints."""
    world = np.empty((len(frames.rotations), NUM_BODY_JOINTS, 3, 3))
    for j, name in enumerate(_BODY):
        if name in drivers:
            align = _alignment(name, frames, rest, drivers)
            world[:, j] = frames.rotations[:, frames.names.index(drivers[name])] @ align
    for name, (low, high, share) in SHARES.items():
        a, b = (Rotation.from_matrix(world[:, _BODY.index(n)]) for n in (low, high))
        part = Rotation.from_rotvec(share * (a.inv() * b).as_rotvec())
        world[:, _BODY.index(name)] = (a * part).as_matrix()
    for j, name in enumerate(_BODY):
        if name not in drivers and name not in SHARES:
            world[:, j] = world[:, PARENTS[j]]
    return world


def _alignment(name: str, frames: WorldFrames, rest: Array, drivers: Mapping[str, str]) -> Array:
    """The shortest turn that lays our rest bone along the source's; identity off the limbs.

    A wrist has no bone of its own here: it takes the forearm's, so that it stays straight at rest.
    """
    start = name if name in LIMB_BONES else f"{name[:2]}Elbow" if name.endswith("Wrist") else None
    if start is None:
        return np.eye(3)
    end = LIMB_BONES[start]
    ours = rest[_BODY.index(end)] - rest[_BODY.index(start)]
    first, last = (frames.names.index(drivers[n]) for n in (start, end))
    return _shortest_turn(ours, frames.rest[last] - frames.rest[first])


def _shortest_turn(a: Array, b: Array) -> Array:
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    axis = np.cross(a, b)
    sine, cosine = float(np.linalg.norm(axis)), float(a @ b)
    if sine < 1e-8:
        if cosine < 0:
            raise InputError(
                "a limb of the source points the opposite way at rest; give another rest pose"
            )
        return np.eye(3)
    return Rotation.from_rotvec(axis / sine * np.arctan2(sine, cosine)).as_matrix()


def _leg_length(frames: WorldFrames, drivers: Mapping[str, str]) -> float:
    """Thigh plus shin of the source in metres, the mean of both legs."""
    total = 0.0
    for letter in "LR":
        hip, knee, ankle = (
            frames.rest[frames.names.index(drivers[f"{letter}_{part}"])]
            for part in ("Hip", "Knee", "Ankle")
        )
        total += float(np.linalg.norm(knee - hip) + np.linalg.norm(ankle - knee)) / 2
    return total


def _local_rotations(world: Array) -> Array:
    """(L,22,3,3) rotations against the parent."""
    local = world.copy()
    for j in range(1, NUM_BODY_JOINTS):
        local[:, j] = np.swapaxes(world[:, PARENTS[j]], -1, -2) @ world[:, j]
    return local
