import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hymotion_ray.errors import InputError
from hymotion_ray.motion.retarget import DRIVERS, WorldFrames, retarget
from hymotion_ray.motion.skeleton import JOINT_NAMES, PARENTS, generic_skeleton

SKELETON = generic_skeleton()
BODY = JOINT_NAMES[:22]


def our_own_frames(num_frames: int = 4, size: float = 1.0, seed: int = 0) -> WorldFrames:
    """Our own skeleton as a source, `size` times as large: random limbs, one bend in the spine."""
    draw = np.random.default_rng(seed)
    rest = SKELETON.rest[:22].astype(np.float64) * size
    bend = Rotation.from_rotvec(draw.normal(scale=0.2, size=(num_frames, 3)))
    rotations = np.zeros((num_frames, 22, 3, 3))
    positions = np.zeros((num_frames, 22, 3))
    for j, name in enumerate(BODY):
        if name in ("Spine1", "Spine2", "Spine3"):
            local = bend
        elif name in DRIVERS and name != "Head":
            local = Rotation.from_rotvec(draw.normal(scale=0.5, size=(num_frames, 3)))
        else:
            local = Rotation.identity(num_frames)
        if j == 0:
            rotations[:, 0], positions[:, 0] = local.as_matrix(), draw.normal(size=(num_frames, 3))
            continue
        p = PARENTS[j]
        rotations[:, j] = rotations[:, p] @ local.as_matrix()
        positions[:, j] = positions[:, p] + rotations[:, p] @ (rest[j] - rest[p])
    names = tuple(DRIVERS.get(name, f"our_{name}") for name in BODY)
    return WorldFrames(names, rest, rotations, positions)


def test_our_own_skeleton_comes_back_as_it_was() -> None:
    frames = our_own_frames()
    result = retarget(frames, SKELETON, fps=30)
    assert result.scale == pytest.approx(1)
    assert result.fit_error < 1e-6
    moved = result.motion.joints[:, :22].numpy() - frames.positions
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:1, :1], moved.shape), atol=1e-5)
    np.testing.assert_allclose(moved[..., [0, 2]], 0, atol=1e-5)


def test_a_larger_body_moves_as_far_as_its_legs_are_longer() -> None:
    result = retarget(our_own_frames(size=1.5), SKELETON, fps=30)
    same_pose = retarget(our_own_frames(), SKELETON, fps=30)
    assert result.scale == pytest.approx(1 / 1.5)
    np.testing.assert_allclose(result.motion.rot6d, same_pose.motion.rot6d, atol=1e-6)


def test_the_lowest_sole_stands_on_the_floor() -> None:
    joints = retarget(our_own_frames(), SKELETON, fps=30).motion.joints
    ankles = joints[:, [7, 8], 1].min() - SKELETON.ankle_height
    toes = joints[:, [10, 11], 1].min() - SKELETON.toe_height
    assert float(min(ankles, toes)) == pytest.approx(0, abs=1e-5)


def test_hanging_arms_at_rest_still_hang_on_our_body_with_the_palm_inwards() -> None:
    """A source whose rest pose has hanging arms: identity rotations mean hanging arms here too."""
    plain = our_own_frames(num_frames=1)
    rest = plain.rest.copy()
    for side, sign in (("L", 1), ("R", -1)):
        shoulder = rest[BODY.index(f"{side}_Shoulder")]
        for part in ("Elbow", "Wrist"):
            joint = BODY.index(f"{side}_{part}")
            rest[joint] = shoulder - np.array([0, sign * (rest[joint] - shoulder)[0], 0])
    still = np.broadcast_to(np.eye(3), (1, 22, 3, 3))
    frames = WorldFrames(plain.names, rest, still, rest[None])
    motion = retarget(frames, SKELETON, fps=30).motion
    joints = motion.joints[0]
    for side in "LR":
        upper = joints[BODY.index(f"{side}_Elbow")] - joints[BODY.index(f"{side}_Shoulder")]
        np.testing.assert_allclose(upper / upper.norm(), [0, -1, 0], atol=1e-5)
    index = JOINT_NAMES.index("L_Thumb1")
    thumb = joints[index] - joints[BODY.index("L_Wrist")]
    assert thumb[2] > 0  # thumbs to the front


def test_missing_source_joints_are_named() -> None:
    frames = our_own_frames()
    names = tuple("elsewhere" if name == "left_knee" else name for name in frames.names)
    with pytest.raises(InputError, match="left_knee"):
        retarget(WorldFrames(names, frames.rest, frames.rotations, frames.positions), SKELETON, 30)
