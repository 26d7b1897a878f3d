"""BVH of every family: our joints are those of independent readers; odd files are no trouble."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.bvh import bvh_rig
from hymotion_ray.formats.sources.rig import LEG_M, Rig

WITHIN_MM = 1e-3
ADDITIVE = "makehuman_tpose_173joints_single_frame.bvh"
NOT_HUMANOID = "synthetic_"


def clip_files(shared: Path) -> list[Path]:
    files = sorted([*shared.glob("motions/bvh/*.bvh"), *shared.glob("corpus/bvh/*.bvh")])
    assert len(files) >= 20
    return files


def metres(rig: Rig) -> float:
    """Metres a unit; a rig that is no humanoid is judged in its own units."""
    try:
        return float(rig.to_clip("x", source="BVH").provenance["unit_m"])
    except SourceError:
        return 0.01


@pytest.mark.filterwarnings("ignore")  # pybvh guesses at up axes and says so
def test_pybvh_has_the_same_joints_at_every_frame(shared: Path) -> None:
    pybvh = pytest.importorskip("pybvh")
    refused = []
    for path in clip_files(shared):
        rig = bvh_rig(path.read_bytes())
        try:
            theirs = pybvh.read_bvh_file(path, world_up="+y")
        except ValueError:  # position channels on children
            refused.append(path.name)
            continue
        places = theirs.joint_positions
        places = places() if callable(places) else places
        ours = rig.positions[:, [rig.names.index(name) for name in theirs.joint_names]]
        gap = np.linalg.norm(ours - places, axis=-1).max() * metres(rig)
        assert gap < WITHIN_MM, path.name
    assert len(refused) <= 3


def test_bvhio_has_the_same_joints_in_small_files(shared: Path) -> None:
    bvhio = pytest.importorskip("bvhio")
    small = [path for path in clip_files(shared) if path.stat().st_size < 2.6e5]
    assert len(small) >= 9
    for path in small:
        if path.name == ADDITIVE:
            continue
        rig = bvh_rig(path.read_bytes())
        unit = metres(rig)
        root = bvhio.readAsHierarchy(str(path))
        for frame in {0, len(rig.positions) // 2, len(rig.positions) - 1}:
            root.loadPose(frame)
            for node, _, _ in root.layout():
                ours = rig.positions[frame, rig.names.index(node.Name)]
                gap = np.linalg.norm(ours - np.array(node.PositionWorld)) * unit
                assert gap < WITHIN_MM, (path.name, node.Name)


def test_zero_position_channels_count_from_the_offset(shared: Path) -> None:
    """MakeHuman writes zeros; bvhio takes them for positions and its body shrinks to a point."""
    rig = bvh_rig((shared / "motions" / "bvh" / ADDITIVE).read_bytes())
    clip = rig.to_clip("x", source="BVH")
    height = np.ptp(clip.positions[0, :, 1])
    assert 1.4 < height < 2.0
    assert clip.provenance["up_axis"] == "+z"


@pytest.mark.parametrize(
    ("name", "unit", "up"),
    [
        ("cmu_01_01_jumps_120fps", (0.050, 0.062), "+y"),  # inch / 0.45
        ("cmu_daz_pirouette_120fps", (0.008, 0.012), "+y"),  # centimetres
        ("fair_dab_zup_30fps", (0.03, 0.04), "+z"),
        ("makehuman_walk1_zup_24fps", (0.085, 0.11), "+z"),  # decimetres
        ("pymo_8walk_xyz_120p005fps", (0.022, 0.028), "+y"),  # inches
        ("NC_bandai1_walk_normal_6ch_30fps", (0.008, 0.012), "+y"),  # a stick for a zero pose
        ("rokoko_dance_fingers_100fps", (0.008, 0.012), "+y"),
        ("mixamo_names_kate_6ch_30fps", (0.008, 0.012), "+y"),
        ("dfki_custom_rig_walk_72fps", (0.008, 0.012), "+y"),
    ],
)
def test_unit_and_axis_are_seen_by_the_body(
    shared: Path, name: str, unit: tuple[float, float], up: str
) -> None:
    content = (shared / "motions" / "bvh" / f"{name}.bvh").read_bytes()
    clip = bvh_rig(content).to_clip("x", source="BVH")
    assert unit[0] < float(clip.provenance["unit_m"]) < unit[1]
    assert clip.provenance["up_axis"] == up
    assert clip.provenance["leg_length"] == pytest.approx(LEG_M)


# --- syntax ---------------------------------------------------------------------------------------

CHAIN = """HIERARCHY
ROOT Hips
{
  OFFSET 0 0 0
  CHANNELS 6 Xposition Yposition Zposition Zrotation Xrotation Yrotation
  JOINT Spine
  {
    OFFSET 0 10 0
    CHANNELS 3 Zrotation Xrotation Yrotation
    End Site
    {
      OFFSET 0 5 0
    }
  }
}
MOTION
Frames: 2
Frame Time: 0.0333333
1 2 3 90 0 0 0 0 0
1 2 3 0 90 0 0 0 90
"""


def test_a_small_chain_by_hand() -> None:
    rig = bvh_rig(CHAIN.encode())
    assert rig.names == ("Hips", "Spine", "Spine_end")
    assert rig.parents == (-1, 0, 1)
    assert rig.fps == 30.0
    assert rig.warnings == ()
    np.testing.assert_allclose(rig.positions[0], [[1, 2, 3], [-9, 2, 3], [-14, 2, 3]], atol=1e-12)
    np.testing.assert_allclose(rig.positions[1], [[1, 2, 3], [1, 2, 13], [1, 2, 18]], atol=1e-12)


@pytest.mark.parametrize(
    "variant",
    [
        CHAIN.replace("\n", "\r\n"),
        CHAIN.replace("  ", "\t"),
        "\ufeff" + CHAIN,
        CHAIN.replace("    End Site\n    {\n      OFFSET 0 5 0\n    }\n", ""),
        CHAIN.replace("{", " { ").replace("Frames: 2", "Frames:\t2").rstrip(),
        CHAIN.replace("End Site", "End Site tip").replace("Frame Time:", "Frame time :"),
        CHAIN.lower().replace("hips", "Hips").replace("hierarchy", "HIERARCHY")
        .replace("motion", "MOTION").replace("spine", "Spine"),
    ],
)  # fmt: skip
def test_forms_in_use_read_alike(variant: str) -> None:
    rig = bvh_rig(variant.encode("utf-8"))
    np.testing.assert_allclose(rig.positions[:, :2], bvh_rig(CHAIN.encode()).positions[:, :2])


def test_latin_1_names_and_names_with_spaces() -> None:
    rig = bvh_rig(CHAIN.replace("JOINT Spine", "JOINT Rück grat").encode("latin-1"))
    assert rig.names[1] == "Rück grat"


def test_rotation_before_position_and_positions_on_children() -> None:
    swapped = CHAIN.replace(
        "CHANNELS 6 Xposition Yposition Zposition Zrotation Xrotation Yrotation",
        "CHANNELS 6 Zrotation Xrotation Yrotation Zposition Yposition Xposition",
    ).replace("1 2 3 90 0 0", "90 0 0 3 2 1")
    np.testing.assert_allclose(
        bvh_rig(swapped.encode()).positions[0], bvh_rig(CHAIN.encode()).positions[0]
    )
    child = CHAIN.replace(
        "CHANNELS 3 Zrotation Xrotation Yrotation",
        "CHANNELS 6 Xposition Yposition Zposition Zrotation Xrotation Yrotation",
    ).replace("90 0 0 0 0 0\n", "90 0 0 0 7 0 0 0 0\n")
    child = child.replace("0 90 0 0 0 90\n", "0 90 0 0 7 0 0 0 90\n")
    np.testing.assert_allclose(bvh_rig(child.encode()).positions[0, 1], [-6, 2, 3], atol=1e-12)


@pytest.mark.parametrize("said", ["1", "3", "1000000000000", "many"])
def test_rows_count_and_a_wrong_header_is_a_warning(said: str) -> None:
    rig = bvh_rig(CHAIN.replace("Frames: 2", f"Frames: {said}").encode())
    assert len(rig.positions) == 2
    assert said in rig.warnings[0]


@pytest.mark.parametrize(
    ("step", "fps"),
    [
        ("0.033333", 30.0),
        ("0.008333", 120.0),
        (".0083333", 120.0),
        ("0.0417083750417", 23.976),
        ("0.008342", 119.875),
        ("0.01", 100.0),
        ("0.041667", 24.0),
    ],
)
def test_frame_times_cut_off_in_text_mean_the_common_rate(step: str, fps: float) -> None:
    rig = bvh_rig(CHAIN.replace("0.0333333", step).encode())
    assert rig.fps == pytest.approx(fps, abs=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("0.0333333", "0", "bad_fps"),
        ("0.0333333", "-0.1", "bad_fps"),
        ("0.0333333", "nan", "bad_fps"),
        ("0.0333333", "fast", "bad_fps"),
        ("0.0333333", "1e-9", "bad_fps"),
        ("HIERARCHY", "HIERARCHIE", "bad_syntax"),
        ("MOTION", "MOTIONS", "truncated"),
        ("Frames: 2", "Pictures: 2", "bad_syntax"),
        ("CHANNELS 3", "CHANNELS 7", "bad_syntax"),
        ("CHANNELS 3 Zrotation", "CHANNELS 3 Wrotation", "bad_syntax"),
        ("CHANNELS 3 Zrotation Xrotation", "CHANNELS 3 Zrotation Zrotation", "bad_syntax"),
        ("OFFSET 0 10 0", "OFFSET 0 ten 0", "bad_syntax"),
        ("OFFSET 0 10 0", "OFFSET 0 inf 0", "not_finite"),
        ("1 2 3 90", "1 2 x 90", "bad_syntax"),
        ("JOINT Spine", "ROOT Spine", "bad_syntax"),
    ],
)
def test_malformed_files_say_what_is_wrong(old: str, new: str, code: str) -> None:
    assert old in CHAIN
    with pytest.raises(SourceError) as error:
        bvh_rig(CHAIN.replace(old, new, 1).encode())
    assert error.value.code == code, str(error.value)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.96])
def test_a_file_cut_off_anywhere_is_refused(share: float) -> None:
    with pytest.raises(SourceError) as error:
        bvh_rig(CHAIN[: int(share * len(CHAIN))].encode())
    assert error.value.code in ("truncated", "bad_syntax", "no_frames")


def test_no_frames() -> None:
    head = CHAIN[: CHAIN.index("1 2 3")]
    with pytest.raises(SourceError) as error:
        bvh_rig(head.encode())
    assert error.value.code == "no_frames"


def test_joints_without_channels_cannot_fill_memory() -> None:
    """A small file that asks for 3 million frames of a thousand joints."""
    joints = "".join(f"JOINT j{k} {{ OFFSET 0 1 0 CHANNELS 0 " for k in range(1000)) + "}" * 1000
    text = f"HIERARCHY ROOT a {{ OFFSET 0 0 0 CHANNELS 1 Xrotation {joints} }}\nMOTION\n"
    text += "Frames: 9\nFrame Time: 0.1\n" + "0\n" * 100_000
    with pytest.raises(SourceError) as error:
        bvh_rig(text.encode())
    assert error.value.code == "too_large"
