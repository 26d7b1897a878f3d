"""ASF/AMC: joints are those of kinematics written apart, and both files are checked."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from made_files import amc_text, asf_text
from scipy.spatial.transform import Rotation

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources import SourceClip, SourceReject, list_sources, read_source
from hymotion_ray.formats.sources.asf_amc import parse_amc, parse_asf

WITHIN_MM = 1e-3
UNIT = 0.0254 / 0.45


def bone_ends(asf: str, amc: str, every: int) -> tuple[list[int], dict[str, np.ndarray]]:
    """Ends of all bones in metres at some frames, by other code: recursion over matrices."""
    sections, key = {}, ""
    for line in asf.splitlines():
        if line.startswith(":"):
            key = line.split()[0][1:]
            sections[key] = []
        elif not line.startswith("#"):
            sections[key].append(line.split())
    bones, current = {}, {}
    for words in sections["bonedata"]:
        if words[0] == "begin":
            current = {"dof": []}
        elif words[0] == "end":
            bones[current["name"]] = current
        elif words[0] == "name":
            current["name"] = words[1]
        elif words[0] in ("direction", "axis"):
            current[words[0]] = [float(w) for w in words[1:4]]
        elif words[0] == "length":
            current["length"] = float(words[1])
        elif words[0] == "dof":
            current["dof"] = words[1:]
    children = {w[0]: w[1:] for w in sections["hierarchy"] if w and w[0] not in ("begin", "end")}
    frames, values = [], {}
    for line in amc.splitlines():
        words = line.split()
        if len(words) == 1 and words[0].isdigit():
            values = {}
            frames.append(values)
        elif frames and len(words) > 1:
            values[words[0]] = [float(w) for w in words[1:]]
    chosen = list(range(0, len(frames), every))
    ends: dict[str, list[np.ndarray]] = {}

    def about(axis: str, degrees: float) -> np.ndarray:
        return Rotation.from_rotvec(np.radians(degrees) * np.eye(3)["xyz".index(axis)]).as_matrix()

    def walk(name: str, turn: np.ndarray, place: np.ndarray, pose: dict) -> None:
        for child in children.get(name, []):
            bone = bones[child]
            x, y, z = bone["axis"]
            c = about("z", z) @ about("y", y) @ about("x", x)
            m = np.eye(3)
            for dof, value in zip(bone["dof"], pose.get(child, []), strict=True):
                m = about(dof[1], value) @ m
            local = turn @ c @ m @ c.T
            end = place + local @ np.array(bone["direction"]) * bone["length"]
            ends.setdefault(child, []).append(end * UNIT)
            walk(child, local, end, pose)

    for k in chosen:
        tx, ty, tz, rx, ry, rz = frames[k]["root"]
        turn = about("z", rz) @ about("y", ry) @ about("x", rx)
        walk("root", turn, np.array([tx, ty, tz]), frames[k])
    return chosen, {name: np.array(points) for name, points in ends.items()}


def check(asf: bytes, amc: bytes, every: int) -> None:
    chosen, theirs = bone_ends(asf.decode("latin-1"), amc.decode("latin-1"), every)
    rig = parse_amc(amc, parse_asf(asf))
    # A bone's end is where its children start, or its own `_end` joint.
    starts = {rig.names[j]: rig.positions[chosen, j] * UNIT for j in range(len(rig.names))}
    parents = {name: rig.names[p] for name, p in zip(rig.names, rig.parents, strict=True) if p >= 0}
    compared = 0
    for name, places in starts.items():
        if parents.get(name) in theirs:
            gap = np.linalg.norm(places - theirs[parents[name]], axis=-1).max()
            assert gap < WITHIN_MM, name
            compared += 1
    assert compared >= 25


def test_a_real_clip_agrees_with_kinematics_written_apart(shared: Path) -> None:
    folder = shared / "motions" / "amc"
    check((folder / "01.asf").read_bytes(), (folder / "01_01.amc").read_bytes(), every=211)


def test_clips_of_three_subjects_in_an_archive_agree_too(shared: Path) -> None:
    with zipfile.ZipFile(shared / "corpus" / "cmu.zip") as archive:
        for subject, clip in (("02", "02_03"), ("03", "03_02")):
            asf, amc = archive.read(f"cmu/{subject}.asf"), archive.read(f"cmu/{clip}.amc")
            check(asf, amc, every=23)


def test_the_clip_of_the_same_take_as_bvh_moves_alike(shared: Path) -> None:
    """cgspeed's conversion starts with one pose of its own; then both go the same way."""
    amc = next(iter(read_source(next(iter(list_sources([shared / "motions/amc/01_01.amc"]))))))
    path = shared / "motions/bvh/cmu_01_01_jumps_120fps.bvh"
    bvh = next(iter(read_source(next(iter(list_sources([path]))))))
    assert isinstance(amc, SourceClip)
    assert isinstance(bvh, SourceClip)
    scale = float(amc.provenance["leg_length"]) / float(bvh.provenance["leg_length"])
    ours = amc.positions[:, amc.joint_names.index("root")]
    theirs = bvh.positions[1:, bvh.joint_names.index("Hips")] * scale
    gaps = np.linalg.norm((ours - ours[0]) - (theirs - theirs[0]), axis=-1)
    assert gaps.max() < 0.02


# --- syntax ---------------------------------------------------------------------------------------


def read(folder: Path, name: str = "07_01.amc") -> SourceClip | SourceReject:
    files = {file.name: file for file in list_sources([folder])}
    (found,) = read_source(files[name])
    return found


def test_the_skeleton_is_found_by_subject_then_by_being_alone(tmp_path: Path) -> None:
    (tmp_path / "07_01.amc").write_text(amc_text())
    missing = read(tmp_path)
    assert isinstance(missing, SourceReject)
    assert missing.code == "no_skeleton"
    (tmp_path / "anna.asf").write_text(asf_text())
    alone = read(tmp_path)
    assert isinstance(alone, SourceClip)
    assert "only one" in str(alone.provenance["warnings"])
    (tmp_path / "07.asf").write_text(asf_text())
    named = read(tmp_path)
    assert isinstance(named, SourceClip)
    assert "only one" not in str(named.provenance["warnings"])
    assert named.fps == 120.0
    assert named.provenance["unit_m"] == pytest.approx(UNIT)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("ltibia 3", "lshin 3", "wrong_skeleton"),
        ("ltibia 3\n", "ltibia 3 4\n", "wrong_skeleton"),
        ("ltibia 3\n", "", "truncated"),
        ("ltibia 3\n", "ltibia x\n", "bad_syntax"),
        ("ltibia 3\n", "ltibia nan\n", "not_finite"),
    ],
)
def test_a_motion_that_does_not_fit_its_skeleton(
    tmp_path: Path, old: str, new: str, code: str
) -> None:
    (tmp_path / "07.asf").write_text(asf_text())
    assert old in amc_text()
    (tmp_path / "07_01.amc").write_text(amc_text().replace(old, new, 1))
    found = read(tmp_path)
    assert isinstance(found, SourceReject)
    assert found.code == code, found.message


def test_an_empty_motion_and_a_looping_skeleton(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as error:
        parse_amc(b":FULLY-SPECIFIED\n:DEGREES\n", parse_asf(asf_text().encode()))
    assert error.value.code == "no_frames"
    looped = asf_text().replace("ltoes", "ltoes").replace("lfoot ltoes", "lfoot ltoes lfemur")
    with pytest.raises(SourceError) as error:
        parse_asf(looped.encode())
    assert error.value.code == "bad_syntax"


def test_radians_give_the_same_pose() -> None:
    skeleton = parse_asf(asf_text().encode())
    degrees = parse_amc(amc_text().encode(), skeleton)
    lines = []
    for line in amc_text().splitlines():
        words = line.split()
        if len(words) > 1 and words[0] != "root":
            line = " ".join([words[0], *(repr(float(np.radians(float(w)))) for w in words[1:])])
        elif words[0] == "root":
            angles = [repr(float(np.radians(float(w)))) for w in words[4:]]
            line = " ".join([*words[:4], *angles])
        lines.append(line.replace(":DEGREES", ":RADIANS"))
    radians = parse_amc("\n".join(lines).encode(), skeleton)
    np.testing.assert_allclose(radians.positions, degrees.positions, atol=1e-9)
