"""How our joints' frames sit on the joint frames of another rig: one constant turn for each.

Our joint turns as its source joint does, times that constant. Knows two ways to it: by the rig's
rest pose where it stands like a body, else by the motion itself. Knows no names and no files.

By rest: trunk, head and collars are straight where the rig's are; each limb bone is laid along the
rig's by the shortest turn, starting from its parent's, so that twists stay small. A foot stands
flat where the rig's does, which is at right angles to a leg that is splayed at rest (CMU), and
points where the rig's points.
By motion, for rigs whose zero pose lays all bones along one line: over the clip the trunk is
unbent, head and collars are as the trunk, hands as the forearms; knees and elbows bend about the
axis about which they are seen to bend; feet are flat where they are lowest. What a performer holds
through a whole clip (a slump, a bowed head) is lost in this way.

Shape letters: L frames, S source joints.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hymotion_ray.motion.humanoid import Humanoid, body_axes, rest_offsets, rest_positions, stands
from hymotion_ray.motion.skeleton import JOINT_NAMES

Array = NDArray[np.float64]

# Below each limb joint of ours the joint that its bone leads to.
BONES: dict[str, str] = {
    f"{side}_{part}": f"{side}_{end}"
    for side in "LR"
    for part, end in (
        ("Hip", "Knee"), ("Knee", "Ankle"), ("Shoulder", "Elbow"), ("Elbow", "Wrist"),
    )
}  # fmt: skip
# A leg further than this from the vertical at rest is splayed, and the foot with it.
_SPLAYED = np.cos(np.radians(12))
# The axis about which knee and elbow bend at rest: a bent shin goes back, a bent forearm forwards.
_HINGES = {
    "L_Hip": (1, 0, 0),
    "R_Hip": (1, 0, 0),
    "L_Shoulder": (0, -1, 0),
    "R_Shoulder": (0, 1, 0),
}
# Bends below this show no axis; an axis that wanders more than this is none.
_BENT = np.sin(np.radians(15))
_STEADY = 0.7
_LOWEST = 0.1


def rest_frames(
    rotations: Array, positions: Array, humanoid: Humanoid, rest: Array
) -> tuple[dict[str, Array], bool]:
    """Constant turns (3,3) by our joint's name, and whether they come from the rest pose.

    rotations (L,S,3,3) and positions (L,S,3): the source in the world, Y up. rest (22,3): ours.
    The turns of Pelvis, Head and every driven limb joint; of the trunk's joints `spine:<k>` and
    `neck:<k>` in the order of the humanoid's chains.
    """
    offsets = rest_offsets(rotations, positions, humanoid.parents)
    source_rest = rest_positions(offsets, humanoid.parents)
    if stands(humanoid, source_rest):
        return _by_rest(source_rest, humanoid, rest), True
    return _by_motion(rotations, positions, humanoid, rest), False


def bone(rest: Array, name: str) -> Array:
    """Direction (3,) of one of our limb bones at rest, of unit length."""
    start, end = JOINT_NAMES.index(name), JOINT_NAMES.index(BONES[name])
    return unit(rest[end] - rest[start])


def unit(vectors: Array) -> Array:
    """Vectors (..., 3) of length one; zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def turns_between(a: Array, b: Array) -> Array:
    """Shortest rotations (..., 3, 3) that turn unit vectors a (..., 3) to b; half turns about X."""
    a, b = np.broadcast_arrays(a, b)
    axis = np.cross(a, b)
    sine, cosine = np.linalg.norm(axis, axis=-1), (a * b).sum(axis=-1)
    fallback = unit(np.cross(a, np.where(np.abs(a[..., :1]) < 0.9, (1.0, 0, 0), (0, 1.0, 0))))
    axis = np.where(sine[..., None] > 1e-9, unit(axis), fallback)
    rotvec = axis * np.arctan2(sine, cosine)[..., None]
    return Rotation.from_rotvec(rotvec.reshape(-1, 3)).as_matrix().reshape(*a.shape, 3)


def _by_rest(source_rest: Array, humanoid: Humanoid, rest: Array) -> dict[str, Array]:
    axes = body_axes(humanoid, source_rest)
    placed = source_rest @ axes
    at = {name: placed[joint] for name, joint in humanoid.joints.items()}
    ours: dict[str, Array] = dict.fromkeys(
        ["Pelvis", "L_Collar", "R_Collar", *_trunk(humanoid)], np.eye(3)
    )
    for side, tip in zip("LR", humanoid.toe_tips, strict=True):
        for chain in (("Hip", "Knee"), ("Shoulder", "Elbow")):
            base = np.eye(3)
            for part in chain:
                name = f"{side}_{part}"
                along = unit(at[BONES[name]] - at[name])
                base = turns_between(base @ bone(rest, name), along) @ base
                ours[name] = base
        ours[f"{side}_Wrist"] = ours[f"{side}_Elbow"]
        shin = unit(at[f"{side}_Ankle"] - at[f"{side}_Knee"])
        foot = ours[f"{side}_Knee"] if -shin[1] < _SPLAYED else np.eye(3)
        if tip >= 0:
            foot = foot @ _heading(foot.T @ (placed[tip] - at[f"{side}_Ankle"]), rest, side)
        ours[f"{side}_Ankle"] = ours[f"{side}_Foot"] = foot
    return {name: axes @ turn for name, turn in ours.items()}


def _trunk(humanoid: Humanoid) -> list[str]:
    spine = [f"spine:{k}" for k in range(len(humanoid.spine))]
    return spine + [f"neck:{k}" for k in range(len(humanoid.neck))]


def _heading(foot: Array, rest: Array, side: str) -> Array:
    """Turns about Y (..., 3, 3) from our foot's direction at rest to that of `foot` (..., 3)."""
    ours = rest[JOINT_NAMES.index(f"{side}_Foot")] - rest[JOINT_NAMES.index(f"{side}_Ankle")]
    angle = np.arctan2(foot[..., 0], foot[..., 2]) - np.arctan2(ours[0], ours[2])
    return Rotation.from_rotvec(angle[..., None] * np.array([0.0, 1.0, 0.0])).as_matrix()


# --- by the motion --------------------------------------------------------------------------------


def _by_motion(
    rotations: Array, positions: Array, humanoid: Humanoid, rest: Array
) -> dict[str, Array]:
    world = {name: rotations[:, joint] for name, joint in humanoid.joints.items()}
    at = {name: positions[:, joint] for name, joint in humanoid.joints.items()}
    trunk = unit(at["Spine3"] - (at["L_Hip"] + at["R_Hip"]) / 2)
    fixed: dict[str, Array] = {}
    for name, part in (("Pelvis", "Hip"), ("Spine3", "Shoulder")):
        left = unit(at[f"L_{part}"] - at[f"R_{part}"])
        fixed[name] = _axes_of(_seen_from(world[name], left), _seen_from(world[name], trunk))
    pelvis, chest = world["Pelvis"] @ fixed["Pelvis"], world["Spine3"] @ fixed["Spine3"]
    for k, joint in enumerate(humanoid.spine):
        wanted = between(pelvis, chest, (k + 1) / len(humanoid.spine))
        fixed[f"spine:{k}"] = _mean_turn(rotations[:, joint], wanted)
    for k, joint in enumerate(humanoid.neck):
        fixed[f"neck:{k}"] = _mean_turn(rotations[:, joint], chest)
    for side in "LR":
        if f"{side}_Collar" in world:
            fixed[f"{side}_Collar"] = _mean_turn(world[f"{side}_Collar"], chest)
        _limb(fixed, world, at, pelvis, (f"{side}_Hip", f"{side}_Knee"), rest)
        _limb(fixed, world, at, chest, (f"{side}_Shoulder", f"{side}_Elbow"), rest)
        forearm = world[f"{side}_Elbow"] @ fixed[f"{side}_Elbow"]
        fixed[f"{side}_Wrist"] = _mean_turn(world[f"{side}_Wrist"], forearm)
    _feet(fixed, world, at, [positions[:, tip] for tip in humanoid.toe_tips if tip >= 0], rest)
    return fixed


def _seen_from(frames: Array, vectors: Array) -> Array:
    """The mean (3,) of vectors (L,3) in frames (L,3,3)."""
    return np.einsum("lji,lj->i", frames, vectors) / len(vectors)


def _axes_of(left: Array, up: Array) -> Array:
    left = unit(left)
    up = unit(up - (up @ left) * left)
    return np.stack([left, up, np.cross(left, up)], axis=1)


def _mean_turn(frames: Array, wanted: Array) -> Array:
    """The constant turn (3,3) that brings frames (L,3,3) nearest to the wanted ones."""
    u, _, vt = np.linalg.svd(np.einsum("lji,ljk->ik", frames, wanted))
    return u @ np.diag([1.0, 1.0, np.linalg.det(u @ vt)]) @ vt


def between(a: Array, b: Array, share: float) -> Array:
    """Rotations (L,3,3) that lie `share` of the way from a to b."""
    first, second = Rotation.from_matrix(a), Rotation.from_matrix(b)
    turn = Rotation.from_rotvec(share * (first.inv() * second).as_rotvec())
    return (first * turn).as_matrix()


def _limb(
    fixed: dict[str, Array],
    world: dict[str, Array],
    at: dict[str, Array],
    base: Array,
    chain: tuple[str, str],
    rest: Array,
) -> None:
    """Upper and lower bone of a limb that hangs on `base` (L,3,3)."""
    upper, lower = chain
    first, second = (unit(at[BONES[name]] - at[name]) for name in chain)
    bend = np.cross(first, second)
    bend = np.where(np.linalg.norm(bend, axis=-1, keepdims=True) > _BENT, bend, 0.0)
    hinge = _seen_from(world[upper], bend)
    strength = float(np.linalg.norm(bend, axis=-1).mean())
    if strength > 0 and np.linalg.norm(hinge) > _STEADY * strength:
        along = _seen_from(world[upper], first)
        ours = _axes_of(bone(rest, upper), np.array(_HINGES[upper], dtype=float))
        fixed[upper] = _axes_of(along, hinge) @ ours.T
    else:
        wanted = turns_between(base @ bone(rest, upper), first) @ base
        fixed[upper] = _mean_turn(world[upper], wanted)
    ours_upper = world[upper] @ fixed[upper]
    wanted = turns_between(ours_upper @ bone(rest, lower), second) @ ours_upper
    fixed[lower] = _mean_turn(world[lower], wanted)


def _feet(
    fixed: dict[str, Array],
    world: dict[str, Array],
    at: dict[str, Array],
    tips: list[Array],
    rest: Array,
) -> None:
    """Ankles and toes. Where its ankle is lowest a foot is flat, or stands on its toes all through
    the clip while the other one is flat: then it is as much steeper as it is seen to be.
    """
    steps = [tip - at[f"{side}_Ankle"] for side, tip in zip("LR", tips, strict=False)]
    lows = [_lowest(at[f"{side}_Ankle"][:, 1]) for side in "LR"]
    slopes = [_slope(step[low]) for step, low in zip(steps, lows, strict=False)]
    for k, side in enumerate("LR"):
        ankle = f"{side}_Ankle"
        if len(tips) < 2:
            shin = world[f"{side}_Knee"] @ fixed[f"{side}_Knee"]
            fixed[ankle] = _mean_turn(world[ankle], shin)
        else:
            pitch = Rotation.from_rotvec([max(slopes) - slopes[k], 0, 0]).as_matrix()
            wanted = _heading(steps[k][lows[k]], rest, side) @ pitch
            fixed[ankle] = _mean_turn(world[ankle][lows[k]], wanted)
        if f"{side}_Foot" in world:
            foot = world[ankle] @ fixed[ankle]
            fixed[f"{side}_Foot"] = _mean_turn(world[f"{side}_Foot"], foot)


def _lowest(heights: Array) -> NDArray[np.bool_]:
    return heights <= np.quantile(heights, _LOWEST)


def _slope(steps: Array) -> float:
    """Mean angle in radians by which vectors (L,3) rise; negative where they fall."""
    return float(np.arctan2(steps[:, 1], np.hypot(steps[:, 0], steps[:, 2])).mean())
