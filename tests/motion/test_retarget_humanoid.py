"""Laws of retargeting any rig: one performance comes out whatever frames and sizes it is in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from hymotion_ray.motion.humanoid import Humanoid, body_axes, rest_offsets, rest_positions, stands
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.retarget import retarget_humanoid
from hymotion_ray.motion.skeleton import JOINT_NAMES, PARENTS, generic_skeleton

SKELETON = generic_skeleton()
BODY = JOINT_NAMES[:22]
LIMBS = [BODY.index(f"{s}_{p}") for s in "LR" for p in ("Hip", "Knee", "Shoulder", "Elbow")]
OURS = Humanoid(
    joints={n: j for j, n in enumerate(BODY) if n[1] == "_" or n in ("Pelvis", "Spine3")},
    parents=PARENTS[:22],
    spine=(3, 6, 9),
    neck=(12, 15),
    toe_tips=(10, 11),
)  # fmt: skip


def walk(num_frames: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """World rotations (L,22,3,3) and positions (L,22,3) of a walk with swinging, bent arms."""
    phase = np.arange(num_frames) / 30 * 2 * np.pi
    turns = np.zeros((num_frames, 22, 3))

    def at(name: str) -> np.ndarray:
        return turns[:, BODY.index(name)]

    at("Pelvis")[:, 1] = 0.3 + 0.1 * np.sin(phase)
    for side, sign in (("L", 1.0), ("R", -1.0)):
        swing = np.sin(phase + (0 if sign > 0 else np.pi))
        at(f"{side}_Hip")[:, 0] = -0.5 * swing
        at(f"{side}_Knee")[:, 0] = 0.6 + 0.5 * np.cos(phase + (0 if sign > 0 else np.pi))
        at(f"{side}_Ankle")[:, 0] = -at(f"{side}_Hip")[:, 0] - at(f"{side}_Knee")[:, 0]
        at(f"{side}_Shoulder")[:, 2] = -1.3 * sign
        at(f"{side}_Elbow")[:, 1] = -sign * (0.8 + 0.3 * swing)
    for name in ("Spine1", "Spine2", "Spine3"):
        at(name)[:, 1] = -0.05 * np.sin(phase)
    local = Rotation.from_rotvec(turns.reshape(-1, 3)).as_matrix().reshape(num_frames, 22, 3, 3)
    world, joints = forward_kinematics(torch.from_numpy(local), SKELETON)
    positions = joints[:, :22].numpy()
    positions[..., 2] += np.linspace(0, 2, num_frames)[:, None]
    return world.numpy(), positions


def local_angles(motion, world: np.ndarray) -> np.ndarray:
    """Degrees (L,22) between a motion's world rotations and the wanted ones."""
    ours = motion.global_rotations().numpy()
    turn = np.swapaxes(ours, -1, -2) @ world
    cosine = np.clip((np.trace(turn, axis1=-2, axis2=-1) - 1) / 2, -1, 1)
    return np.degrees(np.arccos(cosine))


@pytest.mark.parametrize("size", [1.0, 0.45, 100.0])
def test_our_own_rig_of_any_size_comes_back(size: float) -> None:
    world, positions = walk()
    motion, fit = retarget_humanoid(world, positions * size, OURS, SKELETON, 30.0)
    assert fit.by_rest
    assert fit.scale == pytest.approx(1 / size)
    assert fit.mean_error_m < 1e-6
    assert fit.mean_angle_deg < 1e-3
    assert fit.missing == ()
    assert local_angles(motion, world).max() < 0.05
    shift = motion.joints[:, :22].numpy() - positions
    np.testing.assert_allclose(shift, np.broadcast_to(shift[:1, :1], shift.shape), atol=1e-5)
    np.testing.assert_allclose(shift[..., [0, 2]], 0, atol=1e-5)


TURNS = [
    Rotation.from_euler("y", 90, degrees=True),  # faces +X at rest
    Rotation.from_euler("x", -90, degrees=True),  # Z up at rest
    Rotation.from_euler("yx", [180, 90], degrees=True),
]


@pytest.mark.parametrize("turn", TURNS, ids=["faces x", "z up", "on its face"])
def test_it_does_not_matter_how_the_rig_lies_at_rest(turn: Rotation) -> None:
    world, positions = walk()
    motion, fit = retarget_humanoid(world @ turn.as_matrix().T, positions, OURS, SKELETON, 30.0)
    assert fit.by_rest
    assert local_angles(motion, world).max() < 0.05


@pytest.mark.parametrize("drop", [0.6, np.pi / 2])
def test_arms_may_hang_at_rest(drop: float) -> None:
    world, positions = walk()
    for side, sign in (("L", -1), ("R", 1)):
        rest = Rotation.from_rotvec([0, 0, sign * drop]).as_matrix()
        for part in ("Shoulder", "Elbow", "Wrist"):
            world[:, BODY.index(f"{side}_{part}")] @= rest.T
    wanted, _ = walk()
    motion, fit = retarget_humanoid(world, positions, OURS, SKELETON, 30.0)
    assert fit.by_rest
    assert local_angles(motion, wanted).max() < 0.05


def test_legs_splayed_at_rest_take_the_feet_along() -> None:
    """As in CMU's rig: thighs 20 degrees out, and the feet rolled with them."""
    world, positions = walk()
    for side, sign in (("L", 1), ("R", -1)):
        rest = Rotation.from_rotvec([0, 0, sign * np.radians(20)]).as_matrix()
        for part in ("Hip", "Knee", "Ankle", "Foot"):
            world[:, BODY.index(f"{side}_{part}")] @= rest.T
    wanted, _ = walk()
    motion, _ = retarget_humanoid(world, positions, OURS, SKELETON, 30.0)
    assert local_angles(motion, wanted).max() < 0.05


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_rig_whose_zero_pose_says_nothing_is_understood_by_its_motion(seed: int) -> None:
    """Each joint's frame is turned by chance, so that the zero pose is a tangle."""
    world, positions = walk()
    frames = Rotation.random(22, random_state=seed).as_matrix()
    offsets = rest_offsets(world @ frames, positions, OURS.parents)
    assert not stands(OURS, rest_positions(offsets, OURS.parents))
    motion, fit = retarget_humanoid(world @ frames, positions, OURS, SKELETON, 30.0)
    assert not fit.by_rest
    assert fit.mean_angle_deg < 1e-3
    angles = local_angles(motion, world)
    assert angles[:, LIMBS].max() < 6
    assert np.median(angles) < 3
    assert angles.max() < 15
    feet = motion.joints[:, [10, 11], 1].numpy()
    assert feet.min() == pytest.approx(SKELETON.toe_height, abs=0.01)


def test_a_stick_of_bones_does_not_stand_and_a_body_does() -> None:
    stick = np.cumsum(np.full((22, 3), (0.1, 0, 0)), axis=0)
    assert not stands(OURS, stick)
    rest = SKELETON.rest[:22].astype(np.float64)
    assert stands(OURS, rest)
    np.testing.assert_allclose(body_axes(OURS, rest), np.eye(3), atol=1e-9)
    assert not stands(OURS, rest * [1, 1, -1])  # feet point backwards


@pytest.mark.parametrize("kept", [(9,), (6, 9), (3, 6, 9)])
def test_spines_of_any_number_of_joints_share_their_bend(kept: tuple[int, ...]) -> None:
    """Left out joints pass their turn on to the next one above, as in rigs with fewer joints."""
    world, positions = walk()
    rig = Humanoid(OURS.joints, OURS.parents, kept, OURS.neck, OURS.toe_tips)
    motion, _ = retarget_humanoid(world, positions, rig, SKELETON, 30.0)
    angles = local_angles(motion, world)
    assert angles[:, [0, 9, 12, 15]].max() < 0.05
    assert angles[:, [3, 6]].max() < 3


def test_missing_joints_are_named_and_follow_their_parent() -> None:
    world, positions = walk()
    joints = {n: j for n, j in OURS.joints.items() if not n.endswith(("Collar", "Foot"))}
    rig = Humanoid(joints, OURS.parents, OURS.spine, (), (-1, -1))
    motion, fit = retarget_humanoid(world, positions, rig, SKELETON, 30.0)
    assert set(fit.missing) == {"Neck", "Head", "L_Collar", "R_Collar", "L_Foot", "R_Foot"}
    local = motion.local_rotations().numpy()
    for name in fit.missing:
        np.testing.assert_allclose(
            local[:, BODY.index(name)], np.broadcast_to(np.eye(3), (60, 3, 3)), atol=1e-5
        )


def test_a_bone_split_by_a_helper_joint_counts_whole() -> None:
    """A helper half way down the left shin, as MakeHuman has: the leg is as long as before."""
    world, positions = walk()
    knee, ankle = BODY.index("L_Knee"), BODY.index("L_Ankle")
    helper = (positions[:, knee] + positions[:, ankle]) / 2
    parents = [*PARENTS[:22], knee]
    parents[ankle] = 22
    rig = Humanoid(OURS.joints, tuple(parents), OURS.spine, OURS.neck, OURS.toe_tips)
    longer = np.concatenate([positions, helper[:, None]], axis=1)
    frames = np.concatenate([world, world[:, knee : knee + 1]], axis=1)
    assert rig.leg_length(longer) == pytest.approx(SKELETON.leg_length)
    # rest positions need parents before children, which a helper at the end is not
    order = [j for j in range(22) if j not in (ankle, 10)] + [22, ankle, 10]
    place = {old: new for new, old in enumerate(order)}
    sorted_rig = Humanoid(
        {n: place[j] for n, j in OURS.joints.items()},
        tuple(place.get(parents[j], -1) for j in order),
        tuple(place[j] for j in OURS.spine),
        tuple(place[j] for j in OURS.neck),
        (place[10], place[11]),
    )
    motion, _ = retarget_humanoid(frames[:, order], longer[:, order], sorted_rig, SKELETON, 30.0)
    assert local_angles(motion, world).max() < 0.05
