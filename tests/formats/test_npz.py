"""Our npz comes back to the bit, reads as SMPL tools expect it, and hostile files are refused."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sample_motions import META, crooked_skeleton, stand, tumble
from scipy.spatial.transform import Rotation

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.motions.npz import read_npz, write_npz
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.poses import SMPL_PELVIS, relaxed_hands
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
OWN_KEYS = ("rot6d", "transl", "rest", "meta", "hymotion_schema")


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def npz(**arrays: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def as_amass(content: bytes) -> dict[str, np.ndarray]:
    """What is left of our file when only the keys that AMASS has too are kept."""
    keep = ("poses", "trans", "betas", "gender", "mocap_framerate")
    return {key: value for key, value in arrays_of(content).items() if key in keep}


# --- round trip -----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["y-up", "z-up"])
@pytest.mark.parametrize("skeleton", [generic_skeleton(), crooked_skeleton()])
def test_own_file_comes_back_to_the_bit(axis, skeleton):
    motion = tumble(skeleton=skeleton, fps=24.0, meta={**META, "score": 0.1, "note": "名"})
    back = read_npz(write_npz(motion, axis=axis))
    for name in ("rot6d", "transl", "joints"):
        assert torch.equal(getattr(back, name), getattr(motion, name)), name
    assert back.skeleton.same_as(motion.skeleton)
    assert back.fps == motion.fps
    assert back.meta == motion.meta


def test_rotations_that_are_not_orthonormal_come_back_as_they_are():
    motion = tumble()
    raw = Motion.from_rotations(motion.rot6d * 1.3 + 0.01, motion.transl, motion.skeleton, 30.0)
    assert torch.equal(read_npz(write_npz(raw)).rot6d, raw.rot6d)


def test_same_motion_same_bytes():
    one, two = write_npz(tumble(seed=5)), write_npz(tumble(seed=5))
    assert one == two
    assert one != write_npz(tumble(seed=6))
    with zipfile.ZipFile(io.BytesIO(one)) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_largest_seed_survives():
    motion = tumble(meta={**META, "seed": 2**64 - 1})
    assert read_npz(write_npz(motion)).meta["seed"] == 2**64 - 1
    assert str(arrays_of(write_npz(motion))["seed"]) == str(2**64 - 1)


# --- what is in it --------------------------------------------------------------------------------


def test_file_describes_itself():
    data = arrays_of(write_npz(tumble(num_frames=33)))
    assert data["poses"].shape == (33, 156)
    assert data["trans"].shape == (33, 3)
    assert data["betas"].shape == (16,)
    for key in ("gender", "mocap_frame_rate", "mocap_framerate", "num_frames", *META):
        assert data[key].shape == (), key
    assert str(data["gender"]) == "neutral"
    assert {key: data[key].item() for key in META} == META
    assert (float(data["mocap_frame_rate"]), int(data["num_frames"])) == (30.0, 33)
    assert "joints" not in data


def test_file_without_meta_has_the_keys_too():
    data = arrays_of(write_npz(tumble(meta={})))
    assert {key: data[key].item() for key in META} == {
        "prompt": "", "seed": -1, "model": "", "licence": "",
    }  # fmt: skip
    assert read_npz(write_npz(tumble(meta={}))).meta == {}


def test_world_joints_on_request():
    motion = tumble()
    data = arrays_of(write_npz(motion, joints=True))
    assert np.array_equal(data["joints"], motion.joints.numpy())


def test_smpl_blender_addon_would_read_it():
    """The rules by which the add-on reads AMASS files, in its order (reasoned, not run)."""
    data = arrays_of(write_npz(tumble(), axis="z-up"))
    rate = next(k for k in ("mocap_frame_rate", "mocap_framerate", "fps") if k in data)
    assert int(int(data[rate]) / 30) >= 1  # its stride; 0 would be an endless loop
    assert str(data["gender"]) in ("neutral", "male", "female")
    assert data["betas"].ndim == 1
    assert data["poses"].shape[1] in (156, 165)
    assert data["trans"].shape == (len(data["poses"]), 3)


@pytest.mark.parametrize("case", sorted(p.parent.name for p in GOLDEN.glob("*/config.yml")))
@pytest.mark.parametrize("flavour", ["hymotion", "upstream"])
def test_arrays_equal_the_reference(case, flavour):
    expected = load_file(GOLDEN / case / "expected.safetensors")
    rest = np.fromfile(GOLDEN / case / "body" / "j_template.bin", dtype="<f4").reshape(52, 3)
    rot6d, transl = (
        torch.from_numpy(expected[f"decode.{name}"][0]) for name in ("rot6d", "transl")
    )
    motion = Motion.from_rotations(rot6d, transl, Skeleton(rest), 30.0)
    data = arrays_of(write_npz(motion, flavour=flavour))
    for key in ("poses", "trans"):
        want = expected[f"npz.{key}"]
        assert np.linalg.norm(data[key] - want) <= 1e-6 * np.linalg.norm(want), key
    if flavour == "upstream":
        assert set(data) == {"gender", "Rh", "trans", "poses", "betas"}
        assert data["betas"].shape == (1, 16)
        assert np.array_equal(data["Rh"], data["poses"][:, :3])


def test_hands_are_mirrored_and_can_be_flat():
    mean = relaxed_hands().reshape(2, 15, 3)
    assert np.array_equal(mean[1], mean[0] * [1, -1, -1])
    assert not arrays_of(write_npz(tumble(), hands="flat"))["poses"][:, 66:].any()


@pytest.mark.parametrize("option", [{"axis": "x-up"}, {"flavour": "smplx"}, {"hands": "fist"}])
def test_unknown_options_are_refused(option):
    with pytest.raises(OutputError, match=next(iter(option))):
        write_npz(tumble(), **option)


# --- axes and other people's files ----------------------------------------------------------------


def test_z_up_puts_the_smpl_pelvis_where_ours_is():
    """An AMASS reader has its pelvis at trans + its own rest pelvis, its up is our up."""
    motion = stand(raised="L_Shoulder")
    data = arrays_of(write_npz(motion, axis="z-up"))
    pelvis = data["trans"].astype(np.float64) + np.array(SMPL_PELVIS)
    x, y, z = motion.joints[:, 0].numpy().T
    assert np.allclose(pelvis, np.stack([x, -z, y], axis=1), atol=1e-6)
    root = Rotation.from_rotvec(data["poses"][0, :3])
    assert np.allclose(root.apply([0, 1, 0]), [0, 0, 1], atol=1e-6)  # the body's up
    assert np.allclose(root.apply([0, 0, 1]), [0, -1, 0], atol=1e-6)  # the body's front
    assert np.allclose(root.apply([1, 0, 0]), [1, 0, 0], atol=1e-6)  # the body's left


@pytest.mark.parametrize("width", [66, 72, 156, 165])
@pytest.mark.parametrize("rate_key", ["mocap_framerate", "mocap_frame_rate", "fps"])
def test_amass_files_are_read(width, rate_key):
    motion = tumble()
    data = as_amass(write_npz(motion, axis="z-up"))
    poses = np.zeros((motion.num_frames, width))
    poses[:, :66] = data["poses"][:, :66]
    rate = {rate_key: np.array([120.0])}
    back = read_npz(npz(poses=poses, trans=data["trans"], betas=np.zeros(16), **rate))
    assert back.fps == 120.0
    assert torch.allclose(back.joints, motion.joints, atol=1e-5)


def test_released_tools_file_is_read():
    motion = tumble()
    back = read_npz(write_npz(motion, flavour="upstream"))
    assert back.fps == 30.0
    assert torch.allclose(back.joints, motion.joints, atol=1e-5)


def test_amass_sample_gender_as_bytes_and_markers_do_not_matter():
    data = as_amass(write_npz(tumble(), axis="z-up"))
    data |= {
        "gender": np.array(b"male"),
        "dmpls": np.zeros((40, 8)),
        "marker_data": np.ones((40, 9)),
    }
    assert read_npz(npz(**data)).num_frames == 40


# --- what is refused ------------------------------------------------------------------------------


def damaged(**changes: object) -> bytes:
    data: dict[str, object] = dict(arrays_of(write_npz(tumble(num_frames=8))))
    for key, value in changes.items():
        if value is None:
            del data[key]
        else:
            data[key] = value
    return npz(**data)


POISON = np.full((8, 22, 6), np.nan, dtype=np.float32)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an npz"),
        (b"version https://git-lfs.github.com/spec/v1", "not an npz"),
        (write_npz(tumble())[:-200], "not an npz"),
        (npz(betas=np.zeros(16), gender="neutral"), "no motion"),  # AMASS's shape.npz
        (npz(poses=np.zeros((4, 156)), trans=np.zeros((4, 3))), "no frame rate"),
        (npz(poses=np.zeros((4, 90)), trans=np.zeros((4, 3)), fps=30), "90 wide"),
        (npz(poses=np.zeros((4, 156)), trans=np.zeros((5, 3)), fps=30), "`poses`"),
        (npz(poses=np.zeros((0, 156)), trans=np.zeros((0, 3)), fps=30), "`trans`"),
        (npz(poses=np.zeros((4, 156)), trans=np.zeros((4, 3)), fps=np.nan), "fps"),
        (npz(poses=np.zeros((4, 156)), trans=np.zeros((4, 3)), fps=[30, 30]), "one number"),
        (npz(poses=np.array([{}], dtype=object), trans=np.zeros((1, 3)), fps=30), "pickle"),
        (damaged(rot6d=POISON), "NaN"),
        (damaged(rot6d=np.zeros((8, 21, 6))), "`rot6d`"),
        (damaged(rot6d=np.array(["a"])), "`rot6d`"),
        (damaged(rest=None), "`rest` is missing"),
        (damaged(hymotion_schema=99), "schema version 99"),
        (damaged(meta="{"), "not JSON"),
        (damaged(meta=json.dumps({"a": [1]})), "`meta`"),
    ],
)
def test_unusable_files_are_refused_by_name(content, says):
    with pytest.raises(InputError, match=says) as caught:
        read_npz(content, "clip.npz")
    assert str(caught.value).startswith("clip.npz")


def member(name: str, data: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(name, data)
    return buffer.getvalue()


def test_header_that_promises_more_than_the_file_holds():
    buffer = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 156)}
    np.lib.format.write_array_header_1_0(buffer, header)
    with pytest.raises(InputError, match="more than the file holds"):
        read_npz(member("poses.npy", buffer.getvalue()))


def test_header_that_is_no_literal():
    header = b"{'descr': '<f8', 'shape': ((((".ljust(118) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises(InputError, match="damaged header"):
        read_npz(member("poses.npy", content))


def test_zip_bomb():
    content = member("poses.npy", bytes(65 << 20), zipfile.ZIP_DEFLATED)
    assert len(content) < 100_000
    with pytest.raises(InputError, match="unpacks"):
        read_npz(content)


def test_folder_names_in_the_archive():
    with pytest.raises(InputError, match="members"):
        read_npz(member("../../evil.sh", b"x"))


def test_random_damage_never_does_more_than_refuse():
    content = bytearray(write_npz(tumble(num_frames=3)))
    rng = np.random.default_rng(0)
    for _ in range(150):
        broken = bytearray(content)
        for place in rng.integers(0, len(broken), rng.integers(1, 6)):
            broken[place] = rng.integers(0, 256)
        cut = len(broken) if rng.random() < 0.8 else int(rng.integers(0, len(broken)))
        try:
            read_npz(bytes(broken[:cut]))
        except InputError:
            continue
