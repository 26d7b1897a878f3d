"""Our GLB is valid glTF, gives the same joints in three.js, and carries where it comes from."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from node_reader import three_joints, validate
from sample_motions import META, WITHIN_MM, body_mesh, crooked_skeleton, stand, tumble

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.motions.glb import read_glb, write_glb
from hymotion_ray.motion.skeleton import JOINT_NAMES, generic_skeleton

CASES = {
    "tumble": (tumble(), {}),
    "crooked": (tumble(seed=2, skeleton=crooked_skeleton(), fps=24.0), {}),
    "fingers": (tumble(seed=3), {"num_joints": 52}),
    "body mesh": (tumble(seed=4), {"mesh": body_mesh(generic_skeleton())}),
    "one frame": (stand(1), {}),
}


def document(content: bytes) -> dict:
    (length,) = struct.unpack_from("<I", content, 12)
    return json.loads(content[20 : 20 + length])


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest):
    return CASES[request.param]


def test_khronos_validator_finds_nothing(case, tmp_path):
    motion, options = case
    path = tmp_path / "clip.glb"
    path.write_bytes(write_glb(motion, **options))
    issues = validate(path)
    assert (issues["numErrors"], issues["numWarnings"]) == (0, 0), issues["messages"]


def test_three_js_plays_the_same_joints(case, tmp_path):
    motion, options = case
    path = tmp_path / "clip.glb"
    path.write_bytes(write_glb(motion, **options))
    frames = np.unique(np.linspace(0, motion.num_frames - 1, 7).astype(int))
    places = three_joints(path, frames / motion.fps)
    assert set(places) == set(JOINT_NAMES[: options.get("num_joints", 22)])
    for name, track in places.items():
        ours = motion.joints[frames, JOINT_NAMES.index(name)].numpy()
        assert np.linalg.norm(track - ours, axis=1).max() < WITHIN_MM, name


def test_own_reader(case):
    motion, options = case
    back = read_glb(write_glb(motion, **options))
    assert torch.allclose(back.joints, motion.joints, atol=1e-5)
    assert torch.allclose(back.local_rotations(), motion.local_rotations(), atol=1e-5)
    assert (back.fps, back.meta) == (motion.fps, motion.meta)


def test_origin_stands_in_the_extras():
    meta = {**META, "prompt": 'say "hi" </script> 你好'}
    content = document(write_glb(tumble(meta=meta)))
    for extras in (content["asset"]["extras"], content["scenes"][0]["extras"]):
        assert {key: extras[key] for key in meta} == meta


def test_same_motion_same_bytes():
    assert write_glb(tumble(seed=5)) == write_glb(tumble(seed=5))


def test_quaternions_keep_their_sign():
    content = write_glb(tumble(num_frames=200, seed=1))
    parsed = document(content)
    blob = content[28 + struct.unpack_from("<I", content, 12)[0] :]
    tracks = [
        parsed["accessors"][sampler["output"]] for sampler in parsed["animations"][0]["samplers"]
    ]
    rotations = [track for track in tracks if track["type"] == "VEC4"]
    assert len(rotations) == 22
    for track in rotations:
        start = parsed["bufferViews"][track["bufferView"]]["byteOffset"]
        quats = np.frombuffer(blob, "<f4", 4 * track["count"], start).reshape(-1, 4)
        assert ((quats[1:] * quats[:-1]).sum(axis=1) > 0).all()


def test_other_joint_counts_are_refused():
    with pytest.raises(OutputError, match="22, 52"):
        write_glb(stand(1), num_joints=24)


GOOD = write_glb(stand(3))
FOREIGN = GOOD.replace(b'"hymotion":', b'"stranger":')


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a GLB"),
        (b"glTF" + bytes(40), "damaged"),
        (GOOD[:500], "damaged"),
        (GOOD[:-8], "damaged"),
        (FOREIGN, "not a GLB written by"),
        (GOOD.replace(b'"L_Knee"', b'"L_Elk_"'), "animation"),
        (GOOD.replace(b'"schema":1', b'"schema":9'), "schema version 9"),
    ],
)
def test_unusable_files_are_refused_by_name(content, says):
    with pytest.raises(InputError, match=says) as caught:
        read_glb(content, "clip.glb")
    assert str(caught.value).startswith("clip.glb")


def test_random_damage_never_does_more_than_refuse():
    rng = np.random.default_rng(0)
    (length,) = struct.unpack_from("<I", GOOD, 12)
    for _ in range(60):
        broken = bytearray(GOOD)
        # Most of a file is its mesh, which is not read: aim at the JSON.
        for place in rng.integers(0, 20 + length, rng.integers(1, 4)):
            broken[place] = rng.integers(32, 127)
        try:
            read_glb(bytes(broken))
        except InputError:
            continue
