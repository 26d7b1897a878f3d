import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from hymotion_ray.engine.train.clips import (
    TRACK_SECONDS,
    TURNS,
    build_tracks,
    mirror_words,
    read_captions,
)
from hymotion_ray.errors import InputError
from hymotion_ray.motion.skeleton import generic_skeleton

HEADER = "file,use,turn,caption\n"


def write_clip(folder: Path, name: str, seconds: float = 1.0) -> None:
    """A body that glides forward at 1 m/s swinging its right arm."""
    count = round(seconds * 30) + 1
    frames = np.zeros((count, 44))
    frames[:, 0] = 1 / 30
    frames[:, 1] = np.arange(count) / 30
    frames[:, 2] = 0.9
    for column in (4, 8, 12, 16, 21, 30, 35, 39):
        frames[:, column] = 1
    angles = np.sin(np.arange(count) / (count - 1) * 2 * np.pi)[:, None]
    frames[:, 25:29] = Rotation.from_euler("z", angles).as_quat(scalar_first=True)
    (folder / name).write_text(json.dumps({"Loop": "wrap", "Frames": frames.tolist()}))


def write_captions(folder: Path, lines: str) -> Path:
    path = folder / "captions.csv"
    path.write_text(HEADER + lines)
    return path


@pytest.mark.parametrize("use", ["cycle", "action", "hold"])
def test_short_clips_become_tracks_long_enough_for_any_window(tmp_path: Path, use: str) -> None:
    write_clip(tmp_path, "a.txt")
    captions = write_captions(tmp_path, f"a.txt,{use},,a person raises the right arm\n")
    tracks = build_tracks(tmp_path, captions, generic_skeleton())
    for track in tracks:
        assert len(track.features) >= 360 + track.num_starts - 1
        assert torch.isfinite(track.features).all()
    assert any("left" in track.captions[0][0] for track in tracks)


def test_a_cycle_travels_on_and_a_held_clip_stops(tmp_path: Path) -> None:
    write_clip(tmp_path, "a.txt")
    travels = {}
    for use in ("cycle", "hold"):
        captions = write_captions(tmp_path, f"a.txt,{use},,gliding\n")
        track = build_tracks(tmp_path, captions, generic_skeleton())[2]  # normal speed
        travels[use] = float(track.features[360, 2] - track.features[0, 2])
    assert travels["cycle"] == pytest.approx(0.9 * TRACK_SECONDS, rel=0.2)
    assert travels["hold"] == pytest.approx(1.0, rel=0.1)


def test_mirrored_tracks_swap_the_arms_and_the_words(tmp_path: Path) -> None:
    write_clip(tmp_path, "a.txt")
    captions = write_captions(tmp_path, "a.txt,cycle,,the right arm swings\n")
    plain, mirrored = build_tracks(tmp_path, captions, generic_skeleton())[:2]
    assert plain.captions[0] == ("the right arm swings",)
    assert mirrored.captions[0] == ("the left arm swings",)
    left, right = (135 + 3 * joint for joint in (20, 21))
    flip = torch.tensor([-1.0, 1.0, 1.0])
    torch.testing.assert_close(
        mirrored.features[:, left : left + 3],
        plain.features[:, right : right + 3] * flip,
        atol=1e-5,
        rtol=0,
    )


def test_mirrored_words_swap_whole_words_only() -> None:
    assert mirror_words("turns left, brightly") == "turns right, brightly"
    assert mirror_words("clockwise") == "counterclockwise"
    assert mirror_words(mirror_words("left right upright")) == "left right upright"


def test_captions_with_a_turn_stand_under_it_and_the_others_under_all(tmp_path: Path) -> None:
    write_clip(tmp_path, "a.txt")
    lines = (
        "a.txt,cycle,left,turning left\na.txt,cycle,straight,straight on\na.txt,cycle,,walking\n"
    )
    track = build_tracks(tmp_path, write_captions(tmp_path, lines), generic_skeleton())[0]
    by_turn = dict(zip(TURNS, track.captions, strict=True))
    assert by_turn["left"] == ("walking", "turning left")
    assert by_turn["right"] == ("walking",)
    assert by_turn["straight"] == ("walking", "straight on")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("a.txt,twice,,x\n", "captions.csv:2"),
        ("a.txt,cycle,up,x\n", "captions.csv:2"),
        ("a.txt,cycle,,\n", "captions.csv:2"),
        ("a.txt,cycle,,x\na.txt,hold,,y\n", "captions.csv:3"),
        ("other.txt,cycle,,x\n", "names no file"),
    ],
)
def test_bad_caption_lines_are_named(tmp_path: Path, lines: str, said: str) -> None:
    write_clip(tmp_path, "a.txt")
    with pytest.raises(InputError, match=said):
        read_captions(write_captions(tmp_path, lines), tmp_path)
