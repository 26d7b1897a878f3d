"""The SMPL family: one motion written in every form comes out as that motion.

AMASS, Motion-X, WHAM, GVHMR and chunk files are not tried on real files here: their licences do not
allow it. The test files are made from the formats' key tables. AIST++ and ROMP are real.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from made_files import (
    NEUTRAL_PELVIS,
    amass_arrays,
    motionx_rows,
    save_npz,
    smpl_walk,
    to_z_up,
)
from scipy.spatial.transform import Rotation

from hymotion_ray.formats.motions.npz import write_npz
from hymotion_ray.formats.sources import (
    ChunkKeys,
    SourceClip,
    SourceReject,
    list_sources,
    read_source,
    to_motion,
)
from hymotion_ray.formats.sources.smpl_body import SMPL_LEG_M
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d, rotvec_to_matrix
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton

SKELETON = generic_skeleton()
NUM_FRAMES = 60


def read(path: Path, **options) -> list[SourceClip | SourceReject]:
    (file,) = list_sources([path])
    return list(read_source(file, **options))


def one(path: Path, **options) -> SourceClip:
    (clip,) = read(path, **options)
    assert isinstance(clip, SourceClip), clip
    return clip


def refusal(path: Path, **options) -> SourceReject:
    (clip,) = read(path, **options)
    assert isinstance(clip, SourceReject)
    return clip


def check_walk(clip: SourceClip, *, first: int = 0, stop: int = NUM_FRAMES) -> None:
    """The clip is `smpl_walk`: rotations, pelvis, and joints that hang together."""
    poses, trans = smpl_walk(NUM_FRAMES)
    wanted = Rotation.from_rotvec(poses[first:stop, :66].reshape(-1, 3)).as_matrix()
    assert clip.body is not None
    np.testing.assert_allclose(clip.body.rotations.reshape(-1, 3, 3), wanted, atol=1e-5)
    pelvis = (trans + NEUTRAL_PELVIS)[first:stop]
    np.testing.assert_allclose(clip.body.pelvis, pelvis, atol=1e-5)
    np.testing.assert_allclose(clip.positions[:, 0], pelvis, atol=1e-5)
    assert clip.body.leg_length == pytest.approx(SMPL_LEG_M, abs=1e-5)
    assert clip.positions[:, 15, 1].min() > clip.positions[:, 0, 1].max()  # head over pelvis


# --- AMASS ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "key", "value"),
    [
        (156, "mocap_framerate", np.array(120.0)),
        (156, "mocap_framerate", np.array([120.0])),
        (156, "mocap_framerate", np.array(120)),
        (165, "mocap_frame_rate", np.array(120.0)),
        (156, "fps", np.array([120], dtype=np.int32)),
        (72, "mocap_frame_rate", np.array(120.0)),
        (66, "mocap_frame_rate", np.array(120.0)),
    ],
)
def test_amass_of_every_width_and_rate_key(tmp_path: Path, width: int, key: str, value) -> None:
    arrays = amass_arrays(width=width if width > 100 else 156, key=key)
    arrays["poses"], arrays[key] = arrays["poses"][:, :width], value
    clip = one(save_npz(tmp_path / "CMU" / "01" / "01_01_poses.npz", arrays))
    check_walk(clip)
    assert clip.fps == 120.0
    assert clip.provenance["source"] == "AMASS"
    assert clip.provenance["up_axis"] == "+z"
    assert clip.provenance["gender"] == "female"
    assert "non-commercial" in str(clip.provenance["licence"])


@pytest.mark.parametrize("gender", [np.array(b"male"), np.array(["male"]), np.array("male")])
def test_gender_in_any_form(tmp_path: Path, gender: np.ndarray) -> None:
    clip = one(save_npz(tmp_path / "a.npz", amass_arrays() | {"gender": gender}))
    assert clip.provenance["gender"] == "male"


def test_the_fps_key_order(tmp_path: Path) -> None:
    arrays = amass_arrays() | {"fps": np.array(7.0), "mocap_frame_rate": np.array(60.0)}
    assert one(save_npz(tmp_path / "a.npz", arrays)).fps == 60.0


@pytest.mark.parametrize(
    "arrays",
    [
        {"betas": np.zeros(16), "gender": np.array("male")},  # shape.npz
        {"betas": np.zeros(16), "gender": np.array("male"), "marker_meta": np.zeros(3)},
        {k: v for k, v in amass_arrays().items() if k != "mocap_framerate"},
        {"x": np.zeros(3)},
    ],
)
def test_files_without_motion_are_skipped_with_the_reason(tmp_path: Path, arrays: dict) -> None:
    assert refusal(save_npz(tmp_path / "shape.npz", arrays)).code == "no_motion"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mocap_framerate": np.array(0.0)}, "bad_fps"),
        ({"mocap_framerate": np.array(-120.0)}, "bad_fps"),
        ({"mocap_framerate": np.array(np.nan)}, "bad_fps"),
        ({"mocap_framerate": np.array([1.0, 2.0])}, "bad_fps"),
        ({"mocap_framerate": np.array("fast")}, "bad_fps"),
        ({"poses": np.full((60, 156), np.nan)}, "not_finite"),
        ({"trans": np.full((60, 3), np.inf)}, "not_finite"),
        ({"poses": np.zeros((0, 156)), "trans": np.zeros((0, 3))}, "no_frames"),
        ({"poses": np.zeros((60, 150))}, "bad_shape"),
        ({"trans": np.zeros((59, 3))}, "bad_shape"),
        ({"poses": np.array([["a"] * 156] * 60)}, "bad_shape"),
        ({"poses": np.array([{}] * 60, dtype=object)}, "unsafe_pickle"),
        ({"up_axis": np.array("north")}, "wrong_axis"),
    ],
)
def test_amass_files_of_bad_numbers(tmp_path: Path, change: dict, code: str) -> None:
    found = refusal(save_npz(tmp_path / "a.npz", amass_arrays() | change))
    assert found.code == code, found.message


def test_y_up_data_under_amass_keys_is_the_wrong_axis(tmp_path: Path) -> None:
    poses, trans = smpl_walk(NUM_FRAMES)
    arrays = amass_arrays() | {"poses": poses, "trans": trans + np.array([0, 0, 2])}
    found = refusal(save_npz(tmp_path / "a.npz", arrays))
    assert found.code == "wrong_axis"
    said = one(save_npz(tmp_path / "b.npz", arrays | {"trans": trans, "up_axis": np.array("y")}))
    check_walk(said)


def test_a_body_that_lies_all_through_is_kept_with_a_warning(tmp_path: Path) -> None:
    poses, trans = smpl_walk(NUM_FRAMES)
    lying = Rotation.from_euler("x", -90, degrees=True) * Rotation.from_rotvec(poses[:, :3])
    poses[:, :3], trans[:, 1] = lying.as_rotvec(), 0.35
    poses, trans = to_z_up(poses, trans)
    clip = one(save_npz(tmp_path / "a.npz", amass_arrays() | {"poses": poses, "trans": trans}))
    assert "lies" in str(clip.provenance["warnings"])


# --- round trips ----------------------------------------------------------------------------------


def own_motion(skeleton: Skeleton = SKELETON, fps: float = 30.0) -> Motion:
    poses, trans = smpl_walk(NUM_FRAMES, 22)
    rotations = rotvec_to_matrix(torch.from_numpy(poses.reshape(-1, 22, 3)))
    meta = {"prompt": "a person walks", "licence": "Apache-2.0", "model": "tiny"}
    return Motion.from_rotations(
        matrix_to_rot6d(rotations), torch.from_numpy(trans), skeleton, fps, meta
    )


@pytest.mark.parametrize("axis", ["y-up", "z-up"])
def test_our_own_npz_comes_back_as_it_was(tmp_path: Path, axis: str) -> None:
    motion = own_motion()
    path = tmp_path / "own.npz"
    path.write_bytes(write_npz(motion, axis=axis))  # type: ignore[arg-type]
    clip = one(path)
    back, fit = to_motion(clip, SKELETON)
    assert fit.scale == 1.0
    np.testing.assert_allclose(back.rot6d, motion.rot6d, atol=1e-5)
    np.testing.assert_allclose(back.transl, motion.transl, atol=1e-5)
    np.testing.assert_allclose(back.joints, motion.joints, atol=1e-5)
    assert [c.text for c in clip.captions] == ["a person walks"]
    assert clip.provenance["licence"] == "Apache-2.0"


def test_the_amass_arrays_of_our_npz_give_the_same_motion(tmp_path: Path) -> None:
    """A body with SMPL's legs and pelvis: then the AMASS reading is exact as well."""
    rest = SKELETON.rest * np.float32(SMPL_LEG_M / SKELETON.leg_length)
    skeleton = Skeleton(rest - rest[0] + NEUTRAL_PELVIS)
    motion = own_motion(skeleton)
    path = tmp_path / "own.npz"
    path.write_bytes(write_npz(motion, axis="z-up"))
    with np.load(path) as arrays:
        kept = {k: arrays[k] for k in ("poses", "trans", "betas", "gender", "mocap_framerate")}
    clip = one(save_npz(tmp_path / "amass.npz", kept))
    assert clip.provenance["source"] == "AMASS"
    back, _ = to_motion(clip, skeleton)
    np.testing.assert_allclose(back.local_rotations(), motion.local_rotations(), atol=1e-5)
    np.testing.assert_allclose(back.joints, motion.joints, atol=1e-5)


def test_another_body_walks_as_far_as_its_legs_are_longer(tmp_path: Path) -> None:
    clip = one(save_npz(tmp_path / "a.npz", amass_arrays()))
    tall = Skeleton(SKELETON.rest * np.float32(1.2))
    travel = [
        float(to_motion(clip, body, 120.0)[0].transl[[0, -1], 2].diff())
        for body in (SKELETON, tall)
    ]
    assert travel[1] == pytest.approx(1.2 * travel[0], rel=1e-5)


@pytest.mark.parametrize("fps", [24.0, 100.0, 120.0, 150.0, 250.0, 23.976])
def test_resampling_goes_by_time(tmp_path: Path, fps: float) -> None:
    num_frames = int(2 * fps) + 1
    arrays = amass_arrays(num_frames) | {"mocap_framerate": np.array(fps)}
    arrays["trans"][:, 0] = np.arange(num_frames) / fps  # one metre a second
    clip = one(save_npz(tmp_path / "a.npz", arrays))
    motion, _ = to_motion(clip, SKELETON)
    assert motion.fps == 30.0
    assert motion.num_frames == int((num_frames - 1) / fps * 30 + 1e-6) + 1
    speed = np.diff(motion.transl[:, 0].numpy()) * 30
    scale = SKELETON.leg_length / SMPL_LEG_M
    np.testing.assert_allclose(speed, scale, rtol=2e-3)


# --- others ---------------------------------------------------------------------------------------


def test_motion_x(tmp_path: Path) -> None:
    np.save(tmp_path / "clip.npy", motionx_rows(NUM_FRAMES))
    clip = one(tmp_path / "clip.npy")
    check_walk(clip)
    assert clip.fps == 30.0
    assert clip.provenance["source"] == "Motion-X"


@pytest.mark.parametrize(
    ("array", "code"),
    [
        (np.zeros((60, 22, 3)), "positions_only"),
        (np.zeros((60, 263)), "features_only"),
        (np.zeros((60, 272)), "features_only"),
        (np.zeros(7), "no_motion"),
        (np.zeros((0, 322)), "no_frames"),
        (np.full((9, 322), np.nan), "not_finite"),
    ],
)
def test_other_npy_files_are_named_for_what_they_are(
    tmp_path: Path, array: np.ndarray, code: str
) -> None:
    np.save(tmp_path / "clip.npy", array)
    assert refusal(tmp_path / "clip.npy").code == code


def test_aist_is_divided_by_its_scaling(shared: Path) -> None:
    path = shared / "motions" / "smpl" / "aistpp_gBR_sBM_cAll_d04_mBR0_ch01.pkl"
    clip = one(path)
    assert (clip.num_frames, clip.fps) == (720, 60.0)
    assert np.median(clip.positions[:, 15, 1] - clip.positions[:, 0, 1]) > 0.4  # head over pelvis
    steps = np.linalg.norm(np.diff(clip.positions[:, 0], axis=0), axis=1) * 60
    assert np.quantile(steps, 0.99) < 4  # metres a second
    assert "CC BY" in str(clip.provenance["licence"])


def test_romp_is_refused_as_the_camera_sees_it(shared: Path) -> None:
    found = refusal(shared / "motions" / "smpl" / "romp_output_object_array.npz")
    assert found.code == "camera_frame"


def wham_results() -> dict:
    poses, trans = smpl_walk(NUM_FRAMES, 24)
    frames = np.concatenate([np.arange(100, 140), np.arange(150, 170)])
    person = {
        "pose": poses * 0, "trans": trans * 0, "pose_world": poses.astype(np.float32),
        "trans_world": trans.astype(np.float32), "betas": np.zeros((NUM_FRAMES, 10)),
        "verts": np.zeros((NUM_FRAMES, 5, 3), dtype=np.float32), "frame_ids": frames,
    }  # fmt: skip
    camera = {"pose": poses, "trans": trans, "frame_ids": frames}
    return {0: person, 7: camera}


def test_wham_persons_are_cut_where_they_were_lost(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    joblib.dump(wham_results(), tmp_path / "wham_output.pkl")
    early, late, camera = read(tmp_path / "wham_output.pkl")
    assert isinstance(early, SourceClip)
    assert isinstance(late, SourceClip)
    assert (early.name, late.name) == ("wham_output.pkl#0@100", "wham_output.pkl#0@150")
    check_walk(early, stop=40)
    check_walk(late, first=40)
    assert isinstance(camera, SourceReject)
    assert (camera.name, camera.code) == ("wham_output.pkl#7", "camera_frame")


def gvhmr_results() -> dict:
    poses, trans = smpl_walk(NUM_FRAMES)
    params = {
        "global_orient": torch.from_numpy(poses[:, :3]).float(),
        "body_pose": torch.from_numpy(poses[:, 3:66]).float(),
        "transl": torch.from_numpy(trans).float(),
        "betas": torch.zeros(NUM_FRAMES, 10),
    }
    return {
        "smpl_params_global": params,
        "smpl_params_incam": {k: v * 0 for k, v in params.items()},
        "K_fullimg": torch.eye(3).repeat(NUM_FRAMES, 1, 1),
        "net_outputs": {"x": torch.zeros(4)},
    }


def test_gvhmr_gives_the_world_and_not_the_camera(tmp_path: Path) -> None:
    torch.save(gvhmr_results(), tmp_path / "hmr4d_results.pt")
    clip = one(tmp_path / "hmr4d_results.pt")
    check_walk(clip)
    camera = {k: v for k, v in gvhmr_results().items() if k != "smpl_params_global"}
    torch.save(camera, tmp_path / "camera.pt")
    assert refusal(tmp_path / "camera.pt").code == "camera_frame"


# --- chunks ---------------------------------------------------------------------------------------


def chunk_entries() -> list[dict]:
    poses, trans = smpl_walk(NUM_FRAMES)
    z_poses, z_trans = to_z_up(poses, trans)
    rot6d = matrix_to_rot6d(rotvec_to_matrix(torch.from_numpy(poses[:, :66].reshape(-1, 22, 3))))
    return [
        {"name": "tensors", "poses": torch.from_numpy(poses).float(), "trans": torch.tensor(trans),
         "fps": 30, "text": "a person walks"},
        {"id": "arrays", "pose_aa": poses.reshape(-1, 52, 3), "transl": trans,
         "texts": ["walking", "a walk"], "mocap_framerate": np.float64(60)},
        {"rot6d": rot6d, "trans": trans},
        {"name": "z", "poses": z_poses, "trans": z_trans, "fps": 30},
        {"name": "bad", "poses": np.full((9, 66), np.nan), "trans": np.zeros((9, 3))},
        {"name": "none", "frames": 3},
        "not a dict",
        {"name": "zero", "poses": torch.zeros(0, 66), "trans": torch.zeros(0, 3)},
        {"name": "tensors", "poses": poses, "trans": trans},
    ]  # fmt: skip


def test_a_chunk_gives_every_clip_and_every_reason(tmp_path: Path) -> None:
    torch.save(chunk_entries(), tmp_path / "chunk_000.pt")
    found = {clip.name.partition("#")[2]: clip for clip in read(tmp_path / "chunk_000.pt")}
    assert list(found) == [
        "tensors", "arrays", "2", "z", "bad", "none", "6", "zero", "tensors~8"
    ]  # fmt: skip
    for name in ("tensors", "arrays", "2", "z", "tensors~8"):
        check_walk(found[name])
    assert found["arrays"].fps == 60.0
    assert [c.text for c in found["arrays"].captions] == ["walking", "a walk"]
    assert found["z"].provenance["up_axis"] == "+z"
    codes = {n: c.code for n, c in found.items() if isinstance(c, SourceReject)}
    assert codes == {
        "bad": "not_finite",
        "none": "no_motion",
        "6": "no_motion",
        "zero": "no_frames",
    }


def test_a_key_map_names_the_fields_and_the_axis(tmp_path: Path) -> None:
    poses, trans = to_z_up(*smpl_walk(NUM_FRAMES))
    torch.save({"a": {"rotvecs": poses, "place": trans, "hz": 24, "say": "go"}}, tmp_path / "a.pt")
    assert refusal(tmp_path / "a.pt").code == "no_motion"
    keys = ChunkKeys(poses=("rotvecs",), trans=("place",), fps=("hz",), text=("say",), up="z")
    clip = one(tmp_path / "a.pt", chunk_keys=keys)
    check_walk(clip)
    assert clip.fps == 24.0
    assert clip.captions[0].text == "go"


def test_features_are_read_unless_they_are_normalised(tmp_path: Path) -> None:
    from hymotion_ray.motion.features import encode_features

    motion = own_motion()
    features = encode_features(motion.rot6d, motion.transl, SKELETON)
    torch.save([{"latent": features}, {"latent": (features - 1) / 0.05}], tmp_path / "a.pt")
    clip, normalised = read(tmp_path / "a.pt")
    assert isinstance(clip, SourceClip)
    assert clip.body is not None
    np.testing.assert_allclose(clip.body.rotations, motion.local_rotations(), atol=1e-5)
    assert isinstance(normalised, SourceReject)
    assert normalised.code == "normalised"


def test_a_checkpoint_is_no_motion(tmp_path: Path) -> None:
    torch.save({"model_state_dict": {"weight": torch.zeros(3)}}, tmp_path / "a.pth")
    assert refusal(tmp_path / "a.pth").code == "no_motion"
