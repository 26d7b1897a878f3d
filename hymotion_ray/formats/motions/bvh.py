"""BVH: a writer of our skeleton, and the way back.

Knows how our joints lie in a BVH hierarchy and in its Euler channels: centimetres, root with six
channels, `Zrotation Yrotation Xrotation`, End Sites. A BVH has no place for prompt or seed. Does
not know other people's joint names; the syntax is read by `sources.bvh_text`.

Shape letters: L frames, J joints.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hymotion_ray.errors import InputError, OutputError, SourceError
from hymotion_ray.formats.motions.euler import unwrapped_zyx
from hymotion_ray.formats.sources.bvh_text import BvhText, parse_bvh
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d
from hymotion_ray.motion.skeleton import (
    JOINT_NAMES,
    NUM_BODY_JOINTS,
    NUM_JOINTS,
    PARENTS,
    PELVIS,
    Skeleton,
    generic_skeleton,
)

CM = 100.0
_ROTATION_CHANNELS = "Zrotation Yrotation Xrotation"
# Ends of the chains that have no further joint, as offsets in metres: crown, toes, middle knuckle.
_END_SITES = {
    "Head": (0.0, 0.20, 0.0),
    "L_Foot": (0.0, 0.0, 0.07),
    "R_Foot": (0.0, 0.0, 0.07),
}


def write_bvh(motion: Motion, *, num_joints: int = NUM_BODY_JOINTS) -> bytes:
    """The file's bytes: 22 joints, or 52 with flat, unmoving fingers; frame time 1/fps in full.

    The root's OFFSET is zero and its position channels hold the pelvis in the world, so that
    readers agree whether they add the OFFSET or replace it.
    """
    if num_joints not in (NUM_BODY_JOINTS, NUM_JOINTS):
        raise OutputError(f"bvh option num_joints is {num_joints}; allowed: 22, 52")
    order = _depth_first(PELVIS, num_joints)
    lines = ["HIERARCHY", *_hierarchy(motion.skeleton, PELVIS, num_joints, depth=0)]
    lines += ["MOTION", f"Frames: {motion.num_frames}", f"Frame Time: {1 / motion.fps!r}"]
    lines += _rows(motion, order)
    return ("\n".join(lines) + "\n").encode("ascii")


def read_bvh(content: bytes, name: str = "bvh") -> Motion:
    """A motion from the bytes of a file that names our joints; 22 or 52 of them, in any order.

    The pelvis of the generic skeleton stands in for the rest position that BVH cannot tell, so that
    `joints` are right and `transl` counts from there. `InputError` for other skeletons.
    """
    try:
        clip = parse_bvh(content)
    except SourceError as error:
        raise InputError(f"{name}: {error}") from error
    body = JOINT_NAMES[:NUM_BODY_JOINTS]
    missing = [joint for joint in body if joint not in clip.names]
    if missing:
        raise InputError(
            f"{name}: not a BVH of our skeleton: {len(missing)} of its joints are missing, such as"
            f" {', '.join(missing[:4])}; the file has {', '.join(clip.names[:6])}, ..."
            " (bring other skeletons in with `hymotion-ray ingest`)"
        )
    skeleton = Skeleton(_rest(clip, name))
    places = [clip.names.index(joint) for joint in body]
    rotations = np.stack([clip.rotations[:, place] for place in places], axis=1)
    pelvis = clip.positions[:, places[PELVIS]] / CM
    transl = torch.tensor(pelvis - skeleton.rest[PELVIS], dtype=torch.float32)
    rot6d = matrix_to_rot6d(torch.tensor(rotations, dtype=torch.float32))
    return Motion.from_rotations(rot6d, transl, skeleton, clip.fps, {})


def _children(joint: int, num_joints: int) -> list[int]:
    return [child for child in range(num_joints) if PARENTS[child] == joint]


def _depth_first(joint: int, num_joints: int) -> list[int]:
    """Joints in the order in which a BVH lists their channels."""
    below = [_depth_first(child, num_joints) for child in _children(joint, num_joints)]
    return [joint, *(j for branch in below for j in branch)]


def _hierarchy(skeleton: Skeleton, joint: int, num_joints: int, depth: int) -> list[str]:
    tab = "\t" * depth
    root = joint == PELVIS
    offset = np.zeros(3) if root else skeleton.offsets[joint]
    positions = "6 Xposition Yposition Zposition" if root else "3"
    lines = [
        f"{tab}{'ROOT' if root else 'JOINT'} {JOINT_NAMES[joint]}",
        f"{tab}{{",
        f"{tab}\tOFFSET {_numbers(offset * CM)}",
        f"{tab}\tCHANNELS {positions} {_ROTATION_CHANNELS}",
    ]
    children = _children(joint, num_joints)
    for child in children:
        lines += _hierarchy(skeleton, child, num_joints, depth + 1)
    if not children:
        end = _numbers(_end_site(skeleton, joint) * CM)
        lines += [f"{tab}\tEnd Site", f"{tab}\t{{", f"{tab}\t\tOFFSET {end}", f"{tab}\t}}"]
    return [*lines, f"{tab}}}"]


def _end_site(skeleton: Skeleton, joint: int) -> NDArray[np.float64]:
    """Where a chain ends: for a wrist the middle knuckle, for a finger tip its last link again."""
    if JOINT_NAMES[joint] in _END_SITES:
        return np.array(_END_SITES[JOINT_NAMES[joint]])
    if joint < NUM_BODY_JOINTS:
        knuckle = JOINT_NAMES.index(JOINT_NAMES[joint].replace("Wrist", "Middle1"))
        return skeleton.offsets[knuckle].astype(np.float64)
    return skeleton.offsets[joint].astype(np.float64) * 0.8


def _numbers(values: NDArray[np.float64]) -> str:
    return " ".join(f"{value:.6f}" for value in values)


def _rows(motion: Motion, order: list[int]) -> list[str]:
    """One line a frame: pelvis in cm, then Z, Y, X angles in degrees, unwrapped in each channel."""
    num_frames = motion.num_frames
    angles = np.degrees(unwrapped_zyx(motion.local_rotations().numpy().astype(np.float64)))
    fingers = np.zeros((num_frames, NUM_JOINTS - NUM_BODY_JOINTS, 3))
    channels = np.concatenate([angles, fingers], axis=1)[:, order].reshape(num_frames, -1)
    pelvis = motion.joints[:, PELVIS].numpy().astype(np.float64) * CM
    table = np.concatenate([pelvis, channels], axis=1)
    row = " ".join(["%.6f"] * table.shape[1])
    return [row % tuple(values) for values in table.tolist()]


def _rest(clip: BvhText, name: str) -> NDArray[np.float32]:
    """(52,3) rest positions in metres from the OFFSETs; absent fingers are the generic hand's."""
    generic = generic_skeleton()
    rest = generic.rest.astype(np.float64).copy()
    for joint, joint_name in enumerate(JOINT_NAMES[1:], start=1):
        parent = PARENTS[joint]
        offset = generic.offsets[joint].astype(np.float64)
        if joint_name in clip.names:
            place = clip.names.index(joint_name)
            if clip.names[clip.parents[place]] != JOINT_NAMES[parent]:
                raise InputError(
                    f"{name}: {joint_name} hangs from {clip.names[clip.parents[place]]};"
                    f" in our skeleton it hangs from {JOINT_NAMES[parent]}"
                )
            offset = clip.offsets[place] / CM
        rest[joint] = rest[parent] + offset
    return rest.astype(np.float32)
