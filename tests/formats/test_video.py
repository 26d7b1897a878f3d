"""Films and strips: the right number of frames, figures that move, left and right as they are."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sample_motions import body_mesh, stand, tumble

from hymotion_ray.errors import MissingDependencyError, OutputError
from hymotion_ray.formats.figures.caption import caption, wrap
from hymotion_ray.formats.figures.drawing import BACKGROUND, Camera, Painter, posed_vertices
from hymotion_ray.formats.figures.mannequin import mannequin
from hymotion_ray.formats.video import write_mp4, write_png
from hymotion_ray.motion.skeleton import generic_skeleton

Image = pytest.importorskip("PIL.Image")


def painted(azimuth: float = 0.0) -> np.ndarray:
    """The body at rest, (H,W,3)."""
    motion = stand(1)
    painter = Painter(mannequin(motion.skeleton, 8), (300, 240))
    vertices = posed_vertices(painter.figure, motion, np.array([0]))[0]
    picture = painter.paint(vertices, Camera((0.0, 0.9, 0.0), 5.0, azimuth=azimuth))
    return np.asarray(picture).astype(int)


def test_figure_fills_the_middle_and_leaves_the_corners():
    picture = painted()
    assert picture.shape == (240, 300, 3)
    assert tuple(picture[0, 0]) == BACKGROUND
    assert np.abs(picture[90:150, 140:160] - BACKGROUND).max(axis=2).mean() > 10


@pytest.mark.parametrize(("azimuth", "side"), [(0.0, 1), (180.0, -1)])
def test_left_limbs_are_on_the_left(azimuth, side):
    """From the front a body's left (blue) is on the viewer's right; from behind on the left."""
    picture = painted(azimuth)
    blue = picture[..., 2] - picture[..., 0]
    across = np.arange(300)[None].repeat(240, axis=0) - 150
    assert (blue > 40).sum() > 100
    assert (blue < -40).sum() > 100
    assert side * across[blue > 40].mean() > 20
    assert side * across[blue < -40].mean() < -20


def test_camera_sees_the_target_in_the_middle():
    camera = Camera((1.0, 2.0, -3.0), 4.0, azimuth=77.0, elevation=30.0)
    pixels, depth = camera.project(np.array([[1.0, 2.0, -3.0]]), (200, 100))
    assert np.allclose(pixels, [[100, 50]])
    assert np.allclose(depth, 4.0)


def test_film(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "film.mp4"
    write_mp4([stand(10, raised="L_Shoulder"), stand(4), tumble(6)], path)
    reader = ffmpeg.read_frames(str(path))
    facts = next(reader)
    frames = [np.frombuffer(f, np.uint8).reshape(*facts["size"][::-1], 3) for f in reader]
    assert facts["fps"] == 30
    assert len(frames) == 10
    assert not any(side % 2 for side in facts["size"])
    first, last = (frame.astype(int)[:400] for frame in (frames[2], frames[8]))
    assert (np.abs(last - first).max(axis=2) > 60).sum() > 500


def test_strip_has_a_row_a_clip(tmp_path):
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    write_png([tumble()], one, num_poses=3)
    write_png([tumble(), stand(2)], two, num_poses=3, mesh=body_mesh(generic_skeleton()))
    first, second = (np.asarray(Image.open(path)) for path in (one, two))
    assert first.shape[1] == second.shape[1] == 3 * 168 + 24
    assert second.shape[0] > 1.8 * first.shape[0]


@pytest.mark.parametrize("write", [write_mp4, write_png])
def test_no_motions_or_too_many(write, tmp_path):
    for motions in ([], [stand(1)] * 65):
        with pytest.raises(OutputError, match="allowed: 1 to"):
            write(motions, tmp_path / "out")
    with pytest.raises(OutputError, match="num_poses"):
        write_png([stand(1)], tmp_path / "out", num_poses=0)


@pytest.mark.parametrize("module", ["PIL", "imageio_ffmpeg"])
def test_missing_library_says_what_to_install(module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=r"hymotion-ray\[export\]"):
        write_mp4([stand(2)], tmp_path / "film.mp4")


def test_caption_wraps_and_cuts():
    from PIL import ImageFont

    font = ImageFont.load_default(14)
    for text in ("a person " * 40, "x" * 400, "", "你好" * 200, "y" * 100_000):
        lines = wrap(text, font, 200, num_lines=2)
        assert len(lines) <= 2
        assert all(font.getlength(line) <= 200 for line in lines)
    assert wrap("word " * 100, font, 200, num_lines=2)[-1].endswith("…")
    assert caption(stand(1, meta={}), 300, 14).width == 300
