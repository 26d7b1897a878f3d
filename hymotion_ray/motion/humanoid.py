"""Another humanoid's rig: which of its joints are which of ours, and how it stands at rest.

Knows the geometry that tells left, up and front, legs and units of any two-legged rig with a
trunk. Knows no joint names (a reader finds the joints) and no file.

Shape letters: L frames, S source joints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_UPRIGHT = np.cos(np.radians(30))


@dataclass(frozen=True)
class Humanoid:
    """Joints of a source rig, by index.

    joints: by the name of our joint that they drive: Pelvis, Spine3 (where the arms' chains meet),
    Hip, Knee, Ankle, Shoulder, Elbow and Wrist of both sides, and Foot (toes) and Collar where the
    rig has them. parents: (S), -1 for a root. spine: from above the pelvis to the chest. neck: from
    above the chest to the head, empty without a head. toe_tips: what each ankle points at, left and
    right, -1 where nothing.
    """

    joints: Mapping[str, int]
    parents: tuple[int, ...]
    spine: tuple[int, ...]
    neck: tuple[int, ...]
    toe_tips: tuple[int, int]

    def leg_chain(self, side: str) -> tuple[int, ...]:
        """All joints from a hip to its ankle, helpers between them included."""
        chain = [self.joints[f"{side}_Ankle"]]
        while chain[-1] != self.joints[f"{side}_Hip"]:
            chain.append(self.parents[chain[-1]])
        return tuple(reversed(chain))

    def leg_length(self, positions: Array) -> float:
        """Thigh plus shin, the mean of both legs and the median over positions (L,S,3)."""
        total = np.zeros(len(positions))
        for side in "LR":
            chain = list(self.leg_chain(side))
            bones = np.diff(positions[:, chain], axis=1)
            total += np.linalg.norm(bones, axis=-1).sum(axis=1) / 2
        return float(np.median(total))

    def centres(self, positions: Array) -> tuple[Array, Array, Array]:
        """Middle of the ankles, of the hips and top of the trunk, each (L,3)."""
        ankles, hips = (
            positions[:, [self.joints[f"{side}_{part}"] for side in "LR"]].mean(axis=1)
            for part in ("Ankle", "Hip")
        )
        if self.neck:
            return ankles, hips, positions[:, self.neck[-1]]
        shoulders = positions[:, [self.joints[f"{side}_Shoulder"] for side in "LR"]].mean(axis=1)
        return ankles, hips, shoulders

    def left(self, positions: Array) -> Array:
        """Direction (L,3) from the right to the left, by hips and shoulders; not of unit length."""
        at = {name: positions[:, joint] for name, joint in self.joints.items()}
        return (at["L_Hip"] - at["R_Hip"]) + (at["L_Shoulder"] - at["R_Shoulder"])


def rest_offsets(rotations: Array, positions: Array, parents: tuple[int, ...]) -> Array:
    """Offsets (S,3) from the parent in its frame, medians over frames; zero for roots.

    rotations (L,S,3,3) and positions (L,S,3) are in the world.
    """
    offsets = np.zeros((len(parents), 3))
    for joint, parent in enumerate(parents):
        if parent >= 0:
            bones = positions[:, joint] - positions[:, parent]
            offsets[joint] = np.median(np.einsum("lji,lj->li", rotations[:, parent], bones), axis=0)
    return offsets


def rest_positions(offsets: Array, parents: tuple[int, ...]) -> Array:
    """Joints (S,3) of the pose in which every frame is the identity, roots at the origin."""
    rest = np.zeros_like(offsets)
    for joint, parent in enumerate(parents):
        rest[joint] = offsets[joint] + (rest[parent] if parent >= 0 else 0.0)
    return rest


def body_axes(humanoid: Humanoid, rest: Array) -> Array:
    """Rotation (3,3) whose columns are a rest pose's left, up and front.

    Up is the coordinate axis nearest to the direction from hips to head where they lie within 30
    degrees, since heads stand a little in front of hips; else that direction itself.
    """
    _, hips, top = (centre[0] for centre in humanoid.centres(rest[None]))
    up = _unit(top - hips)
    axis = np.sign(up[np.abs(up).argmax()]) * np.eye(3)[np.abs(up).argmax()]
    if up @ axis > _UPRIGHT:
        up = axis
    left = humanoid.left(rest[None])[0]
    left = _unit(left - (left @ up) * up)
    return np.stack([left, up, np.cross(left, up)], axis=1)


def _unit(vectors: Array) -> Array:
    """Vectors (..., 3) of length one; zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def stands(humanoid: Humanoid, rest: Array) -> bool:
    """Whether a rest pose is a standing body: legs down, feet ahead, arms out or hanging.

    Rigs whose zero pose lays all bones along one axis fail this; their rest pose says nothing.
    """
    placed = rest @ body_axes(humanoid, rest)
    at = {name: placed[joint] for name, joint in humanoid.joints.items()}
    leg = humanoid.leg_length(placed[None])
    hip_width = at["L_Hip"][0] - at["R_Hip"][0]
    shoulder_width = at["L_Shoulder"][0] - at["R_Shoulder"][0]
    if min(hip_width, shoulder_width) < 0.1 * leg:
        return False
    for side, sign in (("L", 1.0), ("R", -1.0)):
        drop = at[f"{side}_Ankle"] - at[f"{side}_Hip"]
        arm = at[f"{side}_Wrist"] - at[f"{side}_Shoulder"]
        reach = max(float(np.linalg.norm(arm)), 1e-9)
        if drop[1] > -0.8 * leg or arm[1] > 0.5 * reach or sign * arm[0] < -0.2 * reach:
            return False
    feet = [
        placed[tip] - at[f"{side}_Ankle"]
        for side, tip in zip("LR", humanoid.toe_tips, strict=True)
        if tip >= 0
    ]
    return all(foot[2] > -0.1 * leg for foot in feet)
