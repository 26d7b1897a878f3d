"""Our BVH gives the same joints in three readers, and malformed files are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sample_motions import WITHIN_MM, crooked_skeleton, stand, tumble

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.motions.bvh import read_bvh, write_bvh
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import JOINT_NAMES

MOTIONS = {
    "tumble": tumble(),
    "crooked": tumble(seed=2, skeleton=crooked_skeleton(), fps=29.97),
    "one frame": stand(1),
}


@pytest.fixture(params=MOTIONS)
def motion(request: pytest.FixtureRequest) -> Motion:
    return MOTIONS[request.param]


@pytest.fixture(params=[22, 52])
def num_joints(request: pytest.FixtureRequest) -> int:
    return request.param


def farthest(places: dict[str, np.ndarray], joints: np.ndarray) -> float:
    """Largest distance in metres between named places (L,3) and our joints (L,52,3)."""
    return max(
        float(np.linalg.norm(places[name] - joints[:, JOINT_NAMES.index(name)], axis=-1).max())
        for name in places
    )


def test_own_reader(motion, num_joints):
    back = read_bvh(write_bvh(motion, num_joints=num_joints))
    count = num_joints
    assert torch.allclose(back.joints[:, :count], motion.joints[:, :count], atol=1e-5)
    assert torch.allclose(back.local_rotations(), motion.local_rotations(), atol=1e-5)
    assert back.fps == pytest.approx(motion.fps, rel=1e-3)


@pytest.mark.filterwarnings("ignore")  # pybvh guesses at up axes and says so
def test_pybvh(motion, num_joints, tmp_path):
    pybvh = pytest.importorskip("pybvh")
    path = tmp_path / "clip.bvh"
    path.write_bytes(write_bvh(motion, num_joints=num_joints))
    clip = pybvh.read_bvh_file(path, world_up="+y")
    world = clip.joint_positions() if callable(clip.joint_positions) else clip.joint_positions
    places = {name: world[:, k] / 100 for k, name in enumerate(clip.joint_names)}
    assert len(places) == num_joints
    assert farthest(places, motion.joints.numpy()) < WITHIN_MM
    assert clip.frame_time == pytest.approx(1 / motion.fps, rel=1e-12)


def test_bvhio(motion, num_joints, tmp_path):
    bvhio = pytest.importorskip("bvhio")
    path = tmp_path / "clip.bvh"
    path.write_bytes(write_bvh(motion, num_joints=num_joints))
    assert bvhio.readAsBvh(str(path)).FrameTime == 1 / motion.fps
    root = bvhio.readAsHierarchy(str(path))
    for frame in {0, motion.num_frames // 2, motion.num_frames - 1}:
        root.loadPose(frame)
        nodes = [node for node, _, _ in root.layout() if node.Name in JOINT_NAMES]
        places = {node.Name: np.array(node.PositionWorld)[None] / 100 for node in nodes}
        assert len(places) == num_joints
        assert farthest(places, motion.joints[frame : frame + 1].numpy()) < WITHIN_MM


def test_channels_and_units():
    text = write_bvh(tumble()).decode()
    assert "CHANNELS 6 Xposition Yposition Zposition Zrotation Yrotation Xrotation" in text
    assert text.count("CHANNELS 3 Zrotation Yrotation Xrotation") == 21
    assert text.count("End Site") == 5
    assert f"Frame Time: {1 / 30!r}\n" in text


def test_angles_do_not_jump_between_frames():
    """A player that blends channel by channel never turns a joint the long way round."""
    motion = tumble(num_frames=400, seed=1)
    rows = write_bvh(motion).decode().partition("Frame Time")[2].splitlines()[1:]
    table = np.array([[float(word) for word in row.split()] for row in rows])
    assert np.abs(np.diff(table[:, 3:], axis=0)).max() <= 180
    assert np.abs(table[:, 3:]).max() > 180  # there was something to unwrap


def test_pole_of_the_euler_angles():
    half = torch.tensor([[0.0, 0, 0, 1, -1, 0], [0.0, 0, 0, 1, 1, 0]])  # Y by 90 and -90 degrees
    base = stand(2)
    rot6d = base.rot6d.clone()
    rot6d[:, 16:18] = half
    motion = Motion.from_rotations(rot6d, base.transl, base.skeleton, 30.0)
    back = read_bvh(write_bvh(motion))
    assert torch.allclose(back.joints, motion.joints, atol=1e-5)


def test_other_joint_counts_are_refused():
    with pytest.raises(OutputError, match="22, 52"):
        write_bvh(stand(1), num_joints=24)


GOOD = write_bvh(stand(2)).decode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "HIERARCHY"),
        ("hello", "HIERARCHY"),
        (GOOD.replace("HIERARCHY", "HIER"), "HIERARCHY"),
        (GOOD.replace("L_Hip", "LeftUpLeg"), "not a BVH of our skeleton"),
        (GOOD.replace("JOINT R_Hip", "ROOT R_Hip"), "second ROOT"),
        (GOOD.replace("Zrotation Yrotation Xrotation", "Zrotation Yrotation Wrotation", 1), "wrot"),
        (GOOD.replace("Zrotation Yrotation Xrotation", "Zrotation Zrotation Xrotation", 1), "once"),
        (GOOD.replace("CHANNELS 6", "CHANNELS 99"), "99"),
        (GOOD.replace("OFFSET 0.000000", "OFFSET zero", 1), "is not numbers"),
        (GOOD.replace("}\nMOTION", "MOTION"), "braces"),
        (GOOD.replace("MOTION", "} }\nMOTION"), "out of place"),
        (GOOD.replace("Frame Time:", "Time"), "Frame Time"),
        (GOOD.replace("Frame Time: 0.0333", "Frame Time: -0.0333"), "Frame Time is -0.0333"),
        (GOOD.partition("Frame Time")[0] + "Frame Time: 0.1\n", "no frames"),
        (GOOD + "1 2 3\n", "frame 3 has not 69 numbers"),
        (GOOD.replace("\n0.000000", "\nnan", 1), "NaN"),
        (GOOD.replace("\n0.000000", "\nx", 1), "not a number"),
    ],
)
def test_malformed_files_are_refused_by_name(text, says):
    with pytest.raises(InputError, match=says) as caught:
        read_bvh(text.encode(), "clip.bvh")
    assert str(caught.value).startswith("clip.bvh")


def test_tabs_crlf_bom_and_a_wrong_frame_count_are_read():
    text = "\ufeff" + GOOD.replace("Frames: 2", "Frames: 77").replace("\n", "\r\n")
    assert read_bvh(text.encode()).num_frames == 2


def test_random_damage_never_does_more_than_refuse():
    words = GOOD.split(" ")
    rng = np.random.default_rng(0)
    for _ in range(100):
        broken = list(words)
        for place in rng.integers(0, len(words), 3):
            broken[place] = str(rng.choice(["", "{", "}", "JOINT x", "1e999", "MOTION", "\0"]))
        try:
            read_bvh(" ".join(broken).encode())
        except InputError:
            continue
