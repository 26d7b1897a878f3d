"""The 52-joint SMPL-H tree: names, parents, rest positions, mirror pairs, and a generic body.

It knows where joints are at rest. It knows nothing of rotations, time, meshes or files.
Axes: Y up, +X the body's left, +Z its front; metres.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

import numpy as np

from hymotion_ray.errors import InputError

_BODY_NAMES: Final = (
    *("Pelvis", "L_Hip", "R_Hip", "Spine1", "L_Knee", "R_Knee", "Spine2", "L_Ankle", "R_Ankle"),
    *("Spine3", "L_Foot", "R_Foot", "Neck", "L_Collar", "R_Collar", "Head"),
    *("L_Shoulder", "R_Shoulder", "L_Elbow", "R_Elbow", "L_Wrist", "R_Wrist"),
)
_FINGERS: Final = ("Index", "Middle", "Pinky", "Ring", "Thumb")
_BODY_PARENTS: Final = (-1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19)

NUM_BODY_JOINTS: Final = 22
"""Joints that a motion rotates; the 30 finger joints after them keep their rest rotation."""
NUM_JOINTS: Final = 52
"""Body and finger joints."""

PELVIS: Final = 0
HIPS: Final = (1, 2)
KNEES: Final = (4, 5)
ANKLES: Final = (7, 8)
FEET: Final = (10, 11)
WRISTS: Final = (20, 21)

JOINT_NAMES: Final[tuple[str, ...]] = _BODY_NAMES + tuple(
    f"{side}_{finger}{link}" for side in "LR" for finger in _FINGERS for link in (1, 2, 3)
)
"""Names of the 52 joints, in order."""

PARENTS: Final[tuple[int, ...]] = _BODY_PARENTS + tuple(
    wrist if link == 0 else NUM_BODY_JOINTS + 15 * side + 3 * finger + link - 1
    for side, wrist in enumerate(WRISTS)
    for finger in range(5)
    for link in range(3)
)
"""Parent of each joint, -1 for the pelvis."""

MIRROR_PAIRS: Final[tuple[tuple[int, int], ...]] = (
    *((1, 2), (4, 5), (7, 8), (10, 11), (13, 14), (16, 17), (18, 19), (20, 21)),
    *((22 + finger, 37 + finger) for finger in range(15)),
)
"""Left and right joints that change places when a body is mirrored."""

# Height of the toe joint above the sole, as a share of the leg: 0.033 m under a leg of 0.7795 m,
# the released rig, whose soles were measured.
_TOE_SHARE: Final = 0.033 / 0.7795


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Where the 52 joints of one body are at rest.

    rest: (52, 3) float32 numpy, metres, in a T-pose; InputError when the shape differs or a number
    is not finite. The pelvis need not be at the origin: `rest[0]` is added to a motion's
    translation.
    """

    rest: np.ndarray

    def __post_init__(self) -> None:
        rest = np.ascontiguousarray(self.rest, dtype=np.float32)
        if rest.shape != (NUM_JOINTS, 3) or not np.isfinite(rest).all():
            raise InputError(
                f"rest positions have shape {np.shape(self.rest)}"
                f"{'' if np.isfinite(rest).all() else ' and hold numbers that are not finite'};"
                f" allowed: ({NUM_JOINTS}, 3) finite metres, one row for each SMPL-H joint"
            )
        rest.setflags(write=False)
        object.__setattr__(self, "rest", rest)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Rest position minus the parent's, (52, 3) float64; the pelvis has its own position."""
        rest = self.rest.astype(np.float64)
        offsets = np.concatenate([rest[:1], rest[1:] - rest[list(PARENTS[1:])]])
        offsets.setflags(write=False)
        return offsets

    @cached_property
    def leg_length(self) -> float:
        """Thigh plus shin in metres, the mean of both legs: the measure that sizes a motion."""
        rest = self.rest.astype(np.float64)
        thighs = rest[list(KNEES)] - rest[list(HIPS)]
        shins = rest[list(ANKLES)] - rest[list(KNEES)]
        return float(np.linalg.norm(thighs, axis=1).mean() + np.linalg.norm(shins, axis=1).mean())

    @cached_property
    def toe_height(self) -> float:
        """Height of the toe joint (`L_Foot`, `R_Foot`) above the sole in metres."""
        return _TOE_SHARE * self.leg_length

    @cached_property
    def ankle_height(self) -> float:
        """Height of the ankle above the sole in metres.

        The toe's height plus how much higher than the toe the ankle rests, so that a flat foot
        gives one sole from either joint; never below the toe's height, whatever the rest pose.
        """
        rise = self.rest[list(ANKLES), 1].mean() - self.rest[list(FEET), 1].mean()
        return self.toe_height + max(float(rise), 0.0)

    def same_as(self, other: Skeleton) -> bool:
        """Whether both bodies have the same rest positions, to the bit."""
        return bool(np.array_equal(self.rest, other.rest))


# Heights above the sole (y), distances from the mid line (x) and to the front (z), as shares of the
# standing height. Lengths from R. Drillis and R. Contini's body segment parameters, as printed in
# D. A. Winter, "Biomechanics and Motor Control of Human Movement", figure 4.1: knee 0.285, hip
# 0.530, shoulder 0.818 and chin 0.870 high, ankle 0.039 high, shoulders 0.129 from the mid line,
# upper arm 0.186, forearm 0.146, hand 0.108, foot 0.152 long, hips 0.191 broad. That figure has no
# joints in the trunk. Ours: hip joints half as far apart as the hips are broad, the pelvis a little
# above them, spine and neck spread evenly up to the shoulders' height, the head joint at the chin,
# the ball of the foot half a foot's length before the ankle.
_HEIGHT: Final = 1.73
_PELVIS_Y: Final = 0.570
_TRUNK_XYZ: Final[dict[str, tuple[float, float, float]]] = {
    "Pelvis": (0, _PELVIS_Y, 0),
    "Spine1": (0, 0.632, 0),
    "Spine2": (0, 0.694, 0),
    "Spine3": (0, 0.756, 0),
    "Neck": (0, 0.818, 0),
    "Head": (0, 0.870, 0),
}
_LEFT_XYZ: Final[dict[str, tuple[float, float, float]]] = {
    "Hip": (0.191 / 4, 0.530, 0),
    "Knee": (0.191 / 4, 0.285, 0),
    "Ankle": (0.191 / 4, 0.039, 0),
    "Foot": (0.191 / 4, _TOE_SHARE * (0.530 - 0.039), 0.152 / 2),
    "Collar": (0.129 / 3, 0.800, 0),
    "Shoulder": (0.129, 0.818, 0),
    "Elbow": (0.129 + 0.186, 0.818, 0),
    "Wrist": (0.129 + 0.186 + 0.146, 0.818, 0),
}
# Knuckles seen from the wrist of a flat hand, palm down, as shares of the hand's length: first
# joint (x along the arm, y up, z towards the thumb), then the lengths of the first two links.
# Proportions of our own; the thumb points half forwards.
_HAND: Final = 0.108
_FINGER_XYZ: Final[dict[str, tuple[tuple[float, float, float], float, float]]] = {
    "Index": ((0.50, 0, 0.13), 0.22, 0.14),
    "Middle": ((0.51, 0, 0.01), 0.24, 0.16),
    "Pinky": ((0.44, 0, -0.20), 0.17, 0.11),
    "Ring": ((0.48, 0, -0.10), 0.22, 0.15),
    "Thumb": ((0.14, -0.04, 0.15), 0.22, 0.17),
}
_ORIGIN_ABOVE_PELVIS: Final = 0.2


def _left_finger(finger: str, link: int) -> tuple[float, float, float]:
    """A left finger joint as shares of the standing height, seen from the wrist."""
    (x, y, z), first, second = _FINGER_XYZ[finger]
    reach = (0.0, first, first + second)[link]
    along, forward = (np.sqrt(0.5), np.sqrt(0.5)) if finger == "Thumb" else (1.0, 0.0)
    return (_HAND * (x + along * reach), _HAND * y, _HAND * (z + forward * reach))


@cache
def generic_skeleton() -> Skeleton:
    """A symmetric body of 1.73 m from published segment ratios, for models that bring no body.

    Its origin lies 0.2 m above the pelvis, as in the family of bodies that the released models were
    trained on: their translations mean "pelvis minus about 0.2 m of rest", so a generic body stands
    near the right height before the ground rule has the last word.
    """
    rest = np.zeros((NUM_JOINTS, 3))
    for index, name in enumerate(JOINT_NAMES):
        if name in _TRUNK_XYZ:
            rest[index] = _TRUNK_XYZ[name]
            continue
        side, part = name.split("_")
        if part in _LEFT_XYZ:
            rest[index] = _LEFT_XYZ[part]
        else:
            finger = _left_finger(part[:-1], int(part[-1]) - 1)
            rest[index] = np.add(_LEFT_XYZ["Wrist"], finger)
        if side == "R":
            rest[index, 0] *= -1
    rest *= _HEIGHT
    rest[:, 1] -= _PELVIS_Y * _HEIGHT + _ORIGIN_ABOVE_PELVIS
    return Skeleton(rest.astype(np.float32))
