import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hymotion_ray.errors import InputError
from hymotion_ray.formats.sources.deepmimic import NAMES, read_deepmimic


def rows(count: int = 7, seed: int = 0, step: float = 1 / 60) -> np.ndarray:
    """Frames in which every joint turns smoothly, each its own way."""
    draw = np.random.default_rng(seed)
    times = np.arange(count)[:, None] * step
    frames = np.zeros((count, 44))
    frames[:, 0] = step
    frames[:, 1:4] = draw.normal(size=3) + times * draw.normal(size=3)
    for column in (4, 8, 12, 16, 21, 25, 30, 35, 39):
        turn = Rotation.from_rotvec(draw.normal(size=3) + times * draw.normal(size=3))
        frames[:, column : column + 4] = turn.as_quat(scalar_first=True)
    for column in (20, 29, 34, 43):
        frames[:, column] = draw.normal() + times[:, 0] * draw.normal()
    return frames


def write(path: Path, frames: np.ndarray, loop: str = "none") -> Path:
    path.write_text(json.dumps({"Loop": loop, "Frames": frames.tolist()}))
    return path


def second_kinematics(frame: np.ndarray) -> dict[str, np.ndarray]:
    """Joint positions of one frame, written apart from the reader: faces +X, right is +Z."""

    def ball(column: int) -> Rotation:
        return Rotation.from_quat(frame[column : column + 4], scalar_first=True)

    def hinge(column: int) -> Rotation:
        return Rotation.from_euler("z", frame[column])

    root = ball(4)
    places = {"root": frame[1:4]}
    chest = root * ball(8)
    places["chest"] = places["root"] + root.apply([0, 0.236, 0])
    places["neck"] = places["chest"] + chest.apply([0, 0.224, 0])
    for side, sign, hip, shoulder in (("right", 1, 16, 25), ("left", -1, 30, 39)):
        thigh = root * ball(hip)
        shin = thigh * hinge(hip + 4)
        places[f"{side}_hip"] = places["root"] + root.apply([0, 0, 0.085 * sign])
        places[f"{side}_knee"] = places[f"{side}_hip"] + thigh.apply([0, -0.422, 0])
        places[f"{side}_ankle"] = places[f"{side}_knee"] + shin.apply([0, -0.410, 0])
        upper = chest * ball(shoulder)
        lower = upper * hinge(shoulder + 4)
        joint = chest.apply([-0.024, 0.244, 0.183 * sign])
        places[f"{side}_shoulder"] = places["chest"] + joint
        places[f"{side}_elbow"] = places[f"{side}_shoulder"] + upper.apply([0, -0.275, 0])
        places[f"{side}_wrist"] = places[f"{side}_elbow"] + lower.apply([0, -0.259, 0])
    return places


def check_against_second_kinematics(path: Path, every: int) -> None:
    frames = np.array(json.loads(path.read_text())["Frames"])
    positions = read_deepmimic(path).world_frames().positions
    for number in range(0, len(frames), every):
        for name, (x, y, z) in second_kinematics(frames[number]).items():
            ours = positions[number, NAMES.index(name)]
            np.testing.assert_allclose(ours, [-z, y, x], atol=1e-3, err_msg=name)


def test_positions_agree_with_kinematics_written_apart(tmp_path: Path) -> None:
    check_against_second_kinematics(write(tmp_path / "clip.txt", rows()), every=1)


@pytest.mark.parametrize("name", ["walk", "backflip", "crawl", "getup_faceup"])
def test_real_clips_agree_with_kinematics_written_apart(shared: Path, name: str) -> None:
    path = shared / "corpus" / "deepmimic" / f"humanoid3d_{name}.txt"
    check_against_second_kinematics(path, every=7)


def test_a_walk_goes_to_plus_z_upright_with_its_left_at_plus_x(shared: Path) -> None:
    path = shared / "corpus" / "deepmimic" / "humanoid3d_walk.txt"
    frames = read_deepmimic(path).world_frames()
    at = {name: frames.positions[:, i] for i, name in enumerate(frames.names)}
    travel = at["root"][-1] - at["root"][0]
    assert travel[2] > 1.0
    assert abs(travel[0]) < 0.1
    assert (at["neck"][:, 1] > at["root"][:, 1] + 0.3).all()
    assert (at["left_hip"][:, 0] > at["right_hip"][:, 0]).all()


def test_resampling_keeps_frames_that_both_rates_have(tmp_path: Path) -> None:
    clip = read_deepmimic(write(tmp_path / "clip.txt", rows(13)))
    half = clip.resample(30)
    assert len(half.root) == 7
    np.testing.assert_allclose(half.root, clip.root[::2], atol=1e-12)
    same = Rotation.from_quat(half.local.reshape(-1, 4)).inv() * Rotation.from_quat(
        clip.local[::2].reshape(-1, 4)
    )
    assert same.magnitude().max() < 1e-9


def test_repeated_cycles_join_where_the_last_one_ended(tmp_path: Path) -> None:
    clip = read_deepmimic(write(tmp_path / "clip.txt", rows(31), loop="wrap"))
    long = clip.repeated(3, blend=0.2)
    assert long.duration == pytest.approx(3 * clip.duration)
    steps = np.linalg.norm(np.diff(long.world_frames().positions, axis=0), axis=-1)
    within = steps[:29].max()
    assert steps[29:33].max() < 3 * within
    np.testing.assert_allclose(long.local[30, 1:], clip.local[0, 1:], atol=1e-9)


def test_a_small_yaw_is_closed_and_a_large_one_carried_on(tmp_path: Path) -> None:
    headings = []
    for degrees in (10, 90):
        frames = rows(31)
        yaw = Rotation.from_euler("y", np.linspace(0, degrees, 31)[:, None], degrees=True)
        frames[:, 4:8] = yaw.as_quat(scalar_first=True)
        clip = read_deepmimic(write(tmp_path / f"{degrees}.txt", frames, loop="wrap"))
        last = Rotation.from_quat(clip.repeated(3, blend=0.1).local[-1, 0])
        headings.append(np.degrees(last.magnitude()))
    assert headings[0] == pytest.approx(0, abs=1e-6)
    assert headings[1] == pytest.approx(90, abs=1e-6)  # 3 x 90 degrees, the short way round


def test_a_pause_and_a_held_end_do_not_move(tmp_path: Path) -> None:
    clip = read_deepmimic(write(tmp_path / "clip.txt", rows(31), loop="wrap"))
    paused = clip.repeated(2, blend=0.2, pause=1.0).resample(30).world_frames().positions
    assert np.abs(np.diff(paused[16:44], axis=0)).max() < 1e-9
    held = clip.held(1.0).resample(30).world_frames().positions
    assert np.abs(np.diff(held[16:], axis=0)).max() < 1e-9


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "no DeepMimic clip"),
        ("{}", "no DeepMimic clip"),
        ('{"Frames": [[1, 2]]}', "shape"),
        ('{"Frames": [[1, 2], [1]]}', "no DeepMimic clip"),
        ('{"Frames": []}', "shape"),
        ("[1]", "no DeepMimic clip"),
    ],
)
def test_files_of_another_kind_are_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "clip.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=said) as error:
        read_deepmimic(path)
    assert "clip.txt" in str(error.value)


@pytest.mark.parametrize(
    ("column", "value"), [(2, float("nan")), (0, 0.0), (0, -0.1), (slice(16, 20), 0.0)]
)
def test_damaged_numbers_are_refused(tmp_path: Path, column: int | slice, value: float) -> None:
    frames = rows()
    frames[2, column] = value
    with pytest.raises(InputError, match=r"clip\.txt"):
        read_deepmimic(write(tmp_path / "clip.txt", frames))
