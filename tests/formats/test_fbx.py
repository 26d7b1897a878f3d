"""Our FBX gives the same joints in ufbx and in Autodesk's SDK."""

from __future__ import annotations

import numpy as np
import pytest
from node_reader import fbx_to_glb, three_joints
from sample_motions import META, WITHIN_MM, body_mesh, crooked_skeleton, stand, tumble
from scipy.spatial.transform import Rotation

from hymotion_ray.formats.motions.fbx import write_fbx
from hymotion_ray.motion.skeleton import JOINT_NAMES, PARENTS, generic_skeleton

CASES = {
    "tumble": (tumble(num_frames=60), {}),
    "crooked": (tumble(seed=2, skeleton=crooked_skeleton()), {}),
    "body mesh": (tumble(seed=4), {"mesh": body_mesh(generic_skeleton())}),
    "one frame": (stand(1), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_ufbx_reads_the_same_joints(case, tmp_path):
    pufbx = pytest.importorskip("pufbx")
    motion, options = CASES[case]
    path = tmp_path / "clip.fbx"
    path.write_bytes(write_fbx(motion, **options))
    tracks, times, names = pufbx.anim_to_array(str(path))
    assert list(names) == list(JOINT_NAMES[:22]) or motion.num_frames == 1
    if motion.num_frames == 1:  # nothing moves, so ufbx bakes no frames: read the file as it stands
        assert pufbx.load_fbx(str(path)).find_node("Pelvis") is not None
        return
    frames = np.rint(np.asarray(times) * motion.fps).astype(int)
    assert np.abs(frames / motion.fps - times).max() < 1e-6
    places: list[np.ndarray] = []
    turns: list[Rotation] = []
    for joint, parent in enumerate(PARENTS[:22]):
        place, turn = tracks[joint, :, :3] / 100, Rotation.from_quat(tracks[joint, :, 3:7])
        if parent >= 0:
            place = places[parent] + turns[parent].apply(place)
            turn = turns[parent] * turn
        places.append(place)
        turns.append(turn)
        ours = motion.joints[frames, joint].numpy()
        assert np.linalg.norm(place - ours, axis=1).max() < WITHIN_MM, JOINT_NAMES[joint]
    assert len(frames) >= motion.num_frames


def test_ufbx_reads_skin_and_materials(tmp_path):
    pufbx = pytest.importorskip("pufbx")
    path = tmp_path / "clip.fbx"
    path.write_bytes(write_fbx(tumble()))
    scene = pufbx.load_fbx(str(path))
    assert len(scene.bones) == 22
    assert len(scene.meshes) == 1
    assert len(scene.materials) == 5
    assert len(scene.skin_deformers) == 1


@pytest.mark.parametrize("case", ["tumble", "crooked"])
def test_autodesks_sdk_reads_the_same_joints(case, tmp_path):
    motion, options = CASES[case]
    path = tmp_path / "clip.fbx"
    path.write_bytes(write_fbx(motion, **options))
    frames = np.arange(0, motion.num_frames, 9)
    places = three_joints(fbx_to_glb(path), frames / 30)
    for joint, name in enumerate(JOINT_NAMES[:22]):
        ours = motion.joints[frames, joint].numpy()
        assert np.linalg.norm(places[name] - ours, axis=1).max() < WITHIN_MM, name


def test_origin_stands_in_the_file_and_bytes_repeat():
    content = write_fbx(tumble(seed=5))
    assert content == write_fbx(tumble(seed=5))
    for value in META.values():
        assert str(value).encode() in content
