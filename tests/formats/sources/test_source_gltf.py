"""GLB and VRMA: every clip, with the joints that node matrices multiplied elsewhere give."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation, Slerp

from hymotion_ray.formats.motions.glb import write_glb
from hymotion_ray.formats.sources import (
    SourceClip,
    SourceReject,
    list_sources,
    read_source,
    to_motion,
)
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d
from hymotion_ray.motion.skeleton import generic_skeleton

WITHIN_MM = 1e-3
SKELETON = generic_skeleton()


def read(path: Path) -> list[SourceClip | SourceReject]:
    (file,) = list_sources([path])
    return list(read_source(file))


def parts(content: bytes) -> tuple[dict, bytes]:
    length = struct.unpack_from("<I", content, 12)[0]
    return json.loads(content[20 : 20 + length]), content[28 + length :]


def join(document: dict, blob: bytes) -> bytes:
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    body = struct.pack("<I4s", len(text), b"JSON") + text
    body += struct.pack("<I4s", len(blob), b"BIN\0") + blob
    return b"glTF" + struct.pack("<II", 2, 12 + len(body)) + body


def floats(document: dict, blob: bytes, accessor: int) -> np.ndarray:
    item = document["accessors"][accessor]
    view = document["bufferViews"][item["bufferView"]]
    start = view.get("byteOffset", 0) + item.get("byteOffset", 0)
    width = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}[item["type"]]
    data = np.frombuffer(blob, "<f4", item["count"] * width, start)
    return data.reshape(item["count"], width).astype(np.float64)


def places_elsewhere(content: bytes, animation: dict, times: np.ndarray) -> dict[str, np.ndarray]:
    """World places (T,3) of all named nodes: points pushed through one node after the other."""
    document, blob = parts(content)
    nodes = document["nodes"]
    parent = {c: k for k, node in enumerate(nodes) for c in node.get("children", [])}
    tracks = {}
    for channel in animation["channels"]:
        sampler = animation["samplers"][channel["sampler"]]
        assert sampler.get("interpolation", "LINEAR") == "LINEAR"
        keys = floats(document, blob, sampler["input"])[:, 0]
        tracks[channel["target"]["node"], channel["target"]["path"]] = (
            keys, floats(document, blob, sampler["output"]),
        )  # fmt: skip

    def value(node: int, path: str, default: list[float], t: float) -> np.ndarray:
        if (node, path) not in tracks:
            return np.array(nodes[node].get(path, default), dtype=float)
        keys, values = tracks[node, path]
        t = min(max(t, keys[0]), keys[-1])
        if path == "rotation" and len(keys) > 1:
            return Slerp(keys, Rotation.from_quat(values))(t).as_quat()
        return np.array([np.interp(t, keys, column) for column in values.T])

    found: dict[str, list[np.ndarray]] = {}
    for t in times:
        local = [
            (
                value(k, "scale", [1, 1, 1], t),
                Rotation.from_quat(value(k, "rotation", [0, 0, 0, 1], t)).as_matrix(),
                value(k, "translation", [0, 0, 0], t),
            )
            for k in range(len(nodes))
        ]
        for start, node in enumerate(nodes):
            point, k = np.zeros(3), start
            while k is not None:
                scale, turn, place = local[k]
                point, k = turn @ (point * scale) + place, parent.get(k)
            found.setdefault(node.get("name", ""), []).append(point)
    return {name: np.array(places) for name, places in found.items()}


def check(content: bytes, clips: list, numbers: list[int], rename: dict[str, str]) -> int:
    document, blob = parts(content)
    compared = 0
    for number in numbers:
        clip = clips[number]
        assert isinstance(clip, SourceClip)
        frames = sorted({0, clip.num_frames // 2, clip.num_frames - 1})
        starts = min(
            float(floats(document, blob, s["input"])[0, 0])
            for s in document["animations"][number]["samplers"]
        )
        times = starts + np.array(frames) / clip.fps
        theirs = places_elsewhere(content, document["animations"][number], times)
        for name, places in theirs.items():
            name = rename.get(name, name)
            if clip.joint_names.count(name) == 1 and name:
                ours = clip.positions[frames, clip.joint_names.index(name)]
                unit = float(clip.provenance["unit_m"])
                assert np.linalg.norm(ours - places * unit, axis=1).max() < WITHIN_MM, name
                compared += 1
    return compared


def test_every_clip_of_a_real_character_is_read(shared: Path) -> None:
    path = shared / "corpus" / "gltf" / "kaykit_rogue.glb"
    clips = read(path)
    assert len(clips) == 76
    assert all(isinstance(clip, SourceClip) for clip in clips)
    names = {clip.name.partition("#")[2] for clip in clips}
    assert len(names) == 76
    assert {"Walking_A", "T-Pose", "Death_B"} <= names
    assert check(path.read_bytes(), clips, [0, 25, 41, 70], {}) > 100


def test_a_real_vrm_animation(shared: Path) -> None:
    path = shared / "motions" / "gltf" / "chatvrm_idle_loop.vrma"
    clips = read(path)
    document, _ = parts(path.read_bytes())
    bones = document["extensions"]["VRMC_vrm_animation"]["humanoid"]["humanBones"]
    rename = {document["nodes"][b["node"]]["name"]: name for name, b in bones.items()}
    assert check(path.read_bytes(), clips, [0], rename) > 15
    assert {"leftUpperArm", "hips", "upperChest"} <= set(clips[0].joint_names)
    assert clips[0].provenance["source"] == "VRMA"


def swinging() -> Motion:
    angles = np.zeros((40, 22, 3))
    angles[:, 16, 2] = -1.2 + 0.3 * np.sin(np.arange(40) / 5)
    angles[:, 1, 0] = 0.5 * np.sin(np.arange(40) / 7)
    matrices = Rotation.from_rotvec(angles.reshape(-1, 3)).as_matrix().reshape(40, 22, 3, 3)
    import torch

    transl = torch.zeros(40, 3)
    transl[:, 1] = SKELETON.toe_height - float(SKELETON.rest[10, 1])
    transl[:, 2] = torch.arange(40) * 0.02
    return Motion.from_rotations(matrix_to_rot6d(torch.from_numpy(matrices)), transl, SKELETON, 30)


def test_our_own_glb_comes_back(tmp_path: Path) -> None:
    motion = swinging()
    (tmp_path / "own.glb").write_bytes(write_glb(motion))
    (clip,) = read(tmp_path / "own.glb")
    assert isinstance(clip, SourceClip)
    assert clip.fps == 30.0
    back, fit = to_motion(clip, SKELETON)
    assert fit.scale == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(back.local_rotations(), motion.local_rotations(), atol=2e-5)
    moved = back.joints - motion.joints
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:1, :1], moved.shape), atol=1e-4)


@pytest.mark.parametrize("way", ["STEP", "CUBICSPLINE"])
def test_other_interpolations(tmp_path: Path, way: str) -> None:
    """Splines with zero tangents pass through their keys; steps hold the last one."""
    document, blob = parts(write_glb(swinging()))
    animation = document["animations"][0]
    for sampler in animation["samplers"]:
        sampler["interpolation"] = way
        if way == "CUBICSPLINE":
            values = floats(document, blob, sampler["output"]).astype("<f4")
            rows = np.zeros((len(values), 3, values.shape[1]), dtype="<f4")
            rows[:, 1] = values
            document["bufferViews"].append(
                {"buffer": 0, "byteOffset": len(blob), "byteLength": rows.nbytes}
            )
            accessor = dict(document["accessors"][sampler["output"]])
            accessor |= {"bufferView": len(document["bufferViews"]) - 1, "count": 3 * len(values)}
            accessor["byteOffset"] = 0
            document["accessors"].append(accessor)
            sampler["output"] = len(document["accessors"]) - 1
            blob += rows.tobytes()
    (tmp_path / "own.glb").write_bytes(join(document, blob))
    (clip,) = read(tmp_path / "own.glb")
    assert isinstance(clip, SourceClip)
    back, _ = to_motion(clip, SKELETON)
    np.testing.assert_allclose(back.local_rotations(), swinging().local_rotations(), atol=2e-5)


def test_two_clips_of_one_name_and_a_bad_one_between(tmp_path: Path) -> None:
    document, blob = parts(write_glb(swinging()))
    good = document["animations"][0]
    bad = json.loads(json.dumps(good))
    bad["samplers"][0]["output"] = 9999
    document["animations"] = [good, bad, json.loads(json.dumps(good))]
    (tmp_path / "own.glb").write_bytes(join(document, blob))
    first, refused, last = read(tmp_path / "own.glb")
    assert isinstance(first, SourceClip)
    assert isinstance(last, SourceClip)
    assert isinstance(refused, SourceReject)
    assert refused.code == "bad_syntax"
    assert len({first.name, refused.name, last.name}) == 3


def changed(change) -> bytes:
    document, blob = parts(write_glb(swinging()))
    change(document)
    return join(document, blob)


def set_count(document: dict) -> None:
    document["accessors"][document["animations"][0]["samplers"][0]["input"]]["count"] = 10**10


def loop(document: dict) -> None:
    node = next(k for k, n in enumerate(document["nodes"]) if n.get("name") == "Head")
    document["nodes"][node]["children"] = [
        next(k for k, n in enumerate(document["nodes"]) if n.get("name") == "Pelvis")
    ]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"glTF", "bad_syntax"),
        (b"not a glb at all, really not", "bad_syntax"),
        (write_glb(swinging())[:-100], "truncated"),
        (write_glb(swinging())[:200], "truncated"),
        (changed(lambda d: d.pop("animations")), "no_motion"),
        (changed(set_count), "truncated"),
        (changed(loop), "bad_syntax"),
        (changed(lambda d: d.update(nodes="x")), "bad_syntax"),
        (changed(lambda d: d["nodes"][0].update(scale=[0, 0, 0])), None),
    ],
)
def test_damaged_and_hostile_files(tmp_path: Path, content: bytes, code: str | None) -> None:
    (tmp_path / "a.glb").write_bytes(content)
    found = read(tmp_path / "a.glb")
    rejects = [r for r in found if isinstance(r, SourceReject)]
    if code is not None:
        assert [r.code for r in rejects] == [code], rejects
