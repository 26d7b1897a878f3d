"""Motions of the SMPL family as `SourceClip`s: axes, the pelvis rule, and joints to look at.

Knows that SMPL, SMPL-H and SMPL-X share their first 22 joints, that a translation is not the
pelvis, and how a body of wrong axes gives itself away. Does not know files and keys.

The rest pelvis J0 of the subject's own shape needs the licensed body model, so the neutral body's
stands for it. That error is one constant shift of the whole clip, which standing it on the floor at
x = z = 0 takes away.

Shape letters: L frames.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.clip import BodyPose, Caption, SourceClip, check_size, float32
from hymotion_ray.formats.sources.frame_rate import snapped
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.poses import SMPL_PELVIS
from hymotion_ray.motion.rotations import rotvec_to_matrix
from hymotion_ray.motion.skeleton import (
    JOINT_NAMES,
    NUM_BODY_JOINTS,
    PARENTS,
    PELVIS,
    Skeleton,
    generic_skeleton,
)

Doubles = NDArray[np.float64]

SMPL_LEG_M = 0.7818
"""Thigh plus shin of the neutral SMPL body, mean of both legs (its published joint offsets)."""
_Z_UP_TO_Y_UP = np.array([[1.0, 0, 0], [0, 0, 1.0], [0, -1.0, 0]])
_HEAD, _HIPS = JOINT_NAMES.index("Head"), (1, 2)
# A trunk that leans less than this along the axis that is said to be up is looked at twice.
_STANDS, _LIES = 0.3, 0.8
_NEAR_FLOOR_M = 0.3


def smpl_clip(
    name: str,
    poses: Doubles,
    trans: Doubles,
    fps: float,
    *,
    source: str,
    up: str | None,
    licence: str,
    trans_is_pelvis: bool = False,
    captions: tuple[Caption, ...] = (),
    more: Mapping[str, str | float | int | bool] | None = None,
) -> SourceClip:
    """A clip from axis-angle poses (L, 66 or more) and translation (L,3) in metres.

    up: "y", "z", or None to see it by the pose. trans_is_pelvis: the translation is the pelvis in
    the world; else SMPL's, to which the rest pelvis is added. `SourceError`: bad_shape, wrong_axis.
    """
    check_size(len(poses), NUM_BODY_JOINTS)
    if poses.ndim != 2 or poses.shape[1] < 3 * NUM_BODY_JOINTS or trans.shape != (len(poses), 3):
        raise SourceError(
            f"poses of shape {poses.shape} and translation of {trans.shape}; allowed:"
            f" (L, {3 * NUM_BODY_JOINTS} or more) and (L, 3)",
            "bad_shape",
        )
    rotvecs = torch.from_numpy(poses[:, : 3 * NUM_BODY_JOINTS].copy()).unflatten(1, (-1, 3))
    rotations = rotvec_to_matrix(rotvecs).numpy()
    pelvis = trans if trans_is_pelvis else trans + np.array(SMPL_PELVIS)
    return body_clip(
        name,
        rotations,
        pelvis,
        fps,
        source=source,
        up=up,
        licence=licence,
        captions=captions,
        more=more,
    )


def body_clip(
    name: str,
    rotations: Doubles,
    pelvis: Doubles,
    fps: float,
    *,
    source: str,
    up: str | None,
    licence: str,
    skeleton: Skeleton | None = None,
    captions: tuple[Caption, ...] = (),
    more: Mapping[str, str | float | int | bool] | None = None,
) -> SourceClip:
    """A clip from local rotations (L,22,3,3) and the pelvis in the world (L,3).

    skeleton: the file's own; None for a SMPL body of unknown shape.
    """
    check_size(len(rotations), NUM_BODY_JOINTS)
    if not (np.isfinite(rotations).all() and np.isfinite(pelvis).all()):
        raise SourceError("a frame holds NaN or infinite numbers", "not_finite")
    shown = sized_skeleton(SMPL_LEG_M) if skeleton is None else skeleton
    notes: list[str] = []
    if up is None:
        up = _seen_up(rotations, shown)
        notes.append(f"the file does not say what is up; by the pose it is {up}")
    if up == "z":
        rotations = rotations.copy()
        rotations[:, PELVIS] = _Z_UP_TO_Y_UP @ rotations[:, PELVIS]
        pelvis = pelvis @ _Z_UP_TO_Y_UP.T
    world, joints = forward_kinematics(torch.from_numpy(rotations), shown)
    positions = joints[:, :NUM_BODY_JOINTS].numpy() - shown.rest[PELVIS] + pelvis[:, None]
    _check_up(positions, notes)
    j0 = SMPL_PELVIS if skeleton is None else skeleton.rest[PELVIS].tolist()
    provenance: dict[str, str | float | int | bool] = {
        "source": source,
        "licence": licence,
        "up_axis": f"+{up}",
        "unit_m": 1.0,
        "leg_length": shown.leg_length,
        "pelvis_rest": " ".join(f"{value:.6f}" for value in j0),
        "fps_src": fps,
        "num_joints": NUM_BODY_JOINTS,
    }
    provenance |= dict(more or {})
    if notes:
        provenance["warnings"] = "; ".join(notes)
    return SourceClip(
        name=name,
        joint_names=JOINT_NAMES[:NUM_BODY_JOINTS],
        parents=PARENTS[:NUM_BODY_JOINTS],
        rotations=float32(world.numpy()),
        positions=float32(positions),
        fps=snapped(fps),
        body=BodyPose(
            rotations=float32(rotations),
            pelvis=float32(pelvis),
            leg_length=shown.leg_length,
            rest=None if skeleton is None else skeleton.rest,
        ),
        captions=captions,
        provenance=provenance,
    )


def sized_skeleton(leg_length: float) -> Skeleton:
    """The generic skeleton with legs of another length in metres."""
    generic = generic_skeleton()
    return Skeleton(generic.rest * np.float32(leg_length / generic.leg_length))


def _trunk(joints: Doubles) -> Doubles:
    trunk = joints[:, _HEAD] - joints[:, _HIPS].mean(axis=1)
    return trunk / np.maximum(np.linalg.norm(trunk, axis=1, keepdims=True), 1e-9)


def _seen_up(rotations: Doubles, skeleton: Skeleton) -> str:
    """Whichever of "y" and "z" the trunk stands along, "y" when neither."""
    joints = forward_kinematics(torch.from_numpy(rotations), skeleton)[1].numpy()
    mean = _trunk(joints).mean(axis=0)
    return "z" if mean[2] > max(mean[1], _STANDS) else "y"


def _check_up(positions: Doubles, notes: list[str]) -> None:
    """`SourceError` (wrong_axis) for a body that stands on the floor of another axis all through.

    A body that lies all through a clip looks alike, but its lowest point is near the floor of the
    right axis; where that does not decide, it stays, with a warning.
    """
    mean = _trunk(positions).mean(axis=0)
    if mean[1] > _STANDS or np.abs(mean).max() < _LIES:
        return
    axis = int(np.abs(mean).argmax())
    along = positions[..., axis] * np.sign(mean[axis])
    spread = np.ptp(along.min(axis=1))
    stands_there = abs(along.min()) < _NEAR_FLOOR_M and spread < _NEAR_FLOOR_M
    if axis != 1 and stands_there and abs(positions[..., 1].min()) > _NEAR_FLOOR_M:
        raise SourceError(
            f"the body stands along the axis {'-+'[int(mean[axis] > 0)]}{'xyz'[axis]} (as read, Y"
            " should be up); say which axis is up, or turn the file",
            "wrong_axis",
        )
    notes.append("the body lies or hangs all through the clip, or its axes are others")
