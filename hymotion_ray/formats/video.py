"""Films and picture strips of motions, for places that show no web page.

Knows how clips are laid out in one picture, and the call of ffmpeg. Drawing is `drawing`'s, text is
`caption`'s. Needs the extra [export] (Pillow, imageio-ffmpeg).

Shape letters: L frames, V vertices.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d

from hymotion_ray.errors import MissingDependencyError, OutputError
from hymotion_ray.formats.atomic import write_bytes
from hymotion_ray.formats.figures.caption import PAPER, caption
from hymotion_ray.formats.figures.drawing import Camera, Painter, pillow, posed_vertices
from hymotion_ray.formats.figures.figure import from_body_mesh
from hymotion_ray.formats.figures.mannequin import mannequin
from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import PELVIS

if TYPE_CHECKING:
    from PIL.Image import Image

_NUM_SIDES = 9  # edges round a limb: at these sizes more cost time and show nothing
_GAP = 12
_PANEL_WIDTHS = {1: 720, 2: 560, 3: 440, 4: 480}
_SMALL_PANEL = 320
_MAX_FILM_CLIPS = 36
_MAX_STRIP_CLIPS = 64
_ACCENT = (59, 110, 240)


def write_mp4(
    motions: Sequence[Motion], path: str | os.PathLike[str], *, mesh: BodyMesh | None = None
) -> None:
    """Write an H.264 film to a path or URL: the clips side by side, captioned, the camera near.

    It runs at the highest frame rate among the clips and as long as the longest; shorter ones
    hold their last frame. `OutputError` without motions or with more than 36,
    `MissingDependencyError` without the extra.
    """
    _check_count(motions, _MAX_FILM_CLIPS)
    film = _Film(motions, mesh)
    fps = max(motion.fps for motion in motions)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "film.mp4"
        writer = _ffmpeg().write_frames(
            str(target),
            film.size,
            fps=fps,
            codec="libx264",
            pix_fmt_in="rgb24",
            quality=None,
            macro_block_size=2,
            output_params=["-crf", "20", "-preset", "veryfast", "-movflags", "+faststart"],
        )
        writer.send(None)
        for image in film.frames(fps):
            writer.send(image.tobytes())
        writer.close()
        write_bytes(path, target.read_bytes())


def write_png(
    motions: Sequence[Motion],
    path: str | os.PathLike[str],
    *,
    num_poses: int = 8,
    mesh: BodyMesh | None = None,
) -> None:
    """Write a picture strip to a path or URL: one row a clip, its poses from left to right in time.

    `OutputError` without motions, with more than 64 or num_poses outside 1..24,
    `MissingDependencyError` without the extra.
    """
    _check_count(motions, _MAX_STRIP_CLIPS)
    if not 1 <= num_poses <= 24:
        raise OutputError(f"num_poses is {num_poses}; allowed: 1 to 24")
    image_module, _, _ = pillow()
    rows = [_strip(motion, num_poses, mesh) for motion in motions]
    width = rows[0].width + 2 * _GAP
    sheet = image_module.new("RGB", (width, _GAP + sum(r.height + _GAP for r in rows)), PAPER)
    top = _GAP
    for row in rows:
        sheet.paste(row, (_GAP, top))
        top += row.height + _GAP
    buffer = BytesIO()
    sheet.save(buffer, format="PNG", optimize=False)
    write_bytes(path, buffer.getvalue())


def _check_count(motions: Sequence[Motion], most: int) -> None:
    if not 1 <= len(motions) <= most:
        raise OutputError(
            f"{len(motions)} motions for one picture; allowed: 1 to {most} (a page takes more)"
        )


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as cause:
        raise MissingDependencyError(
            "films need imageio-ffmpeg, which is not installed; run"
            " `pip install 'hymotion-ray[export]'`"
        ) from cause
    return imageio_ffmpeg


class _Shot:
    """One clip in front of a camera that follows it."""

    def __init__(self, motion: Motion, size: tuple[int, int], mesh: BodyMesh | None) -> None:
        self.motion = motion
        figure = mannequin(motion.skeleton, _NUM_SIDES) if mesh is None else from_body_mesh(mesh)
        self._painter = Painter(figure, size)
        pelvis = motion.joints[:, PELVIS].numpy().astype(np.float64)
        self._centre = gaussian_filter1d(pelvis, 0.35 * motion.fps, axis=0, mode="nearest")
        self._height = float(np.ptp(figure.vertices[:, 1])) / 1.75

    def paint(self, frames: NDArray[np.int64]) -> Iterator[Image]:
        """The pictures of some frames."""
        for chunk in np.array_split(frames, max(1, len(frames) // 32)):
            vertices = posed_vertices(self._painter.figure, self.motion, chunk)
            for k, frame in enumerate(chunk):
                yield self._painter.paint(vertices[k], self._camera(int(frame)))

    def _camera(self, frame: int) -> Camera:
        x, y, z = self._centre[frame]
        width, height = self._painter.size
        distance = 4.3 * self._height * max(1.0, 0.72 * height / width)
        return Camera((x, 0.5 * self._height + 0.46 * y, z), distance)


class _Film:
    """Clips in a grid, each with its caption below, and a line that shows the time."""

    def __init__(self, motions: Sequence[Motion], mesh: BodyMesh | None) -> None:
        self._image, self._draw, _ = pillow()
        num_columns = len(motions) if len(motions) < 4 else math.ceil(math.sqrt(len(motions)))
        width = _PANEL_WIDTHS.get(len(motions), _SMALL_PANEL)
        self._shots = [_Shot(motion, (width, width), mesh) for motion in motions]
        captions = [caption(motion, width, max(13, width // 34)) for motion in motions]
        panel = width + max(text.height for text in captions)
        num_rows = math.ceil(len(motions) / num_columns)
        # Even on both sides, as H.264 wants it.
        self.size = (
            num_columns * (width + _GAP) + _GAP,
            (num_rows * (panel + _GAP) + _GAP + 1) // 2 * 2,
        )
        self._places = [
            (_GAP + (width + _GAP) * (k % num_columns), _GAP + (panel + _GAP) * (k // num_columns))
            for k in range(len(motions))
        ]
        self._backdrop = self._image.new("RGB", self.size, PAPER)
        for (left, top), text in zip(self._places, captions, strict=True):
            self._backdrop.paste(text, (left, top + width))

    def frames(self, fps: float) -> Iterator[Image]:
        """Every frame of the film; the same picture object is drawn over again and again."""
        duration = max((shot.motion.num_frames - 1) / shot.motion.fps for shot in self._shots)
        num_frames = round(duration * fps) + 1
        times = np.arange(num_frames) / fps
        runs = [
            shot.paint(
                np.minimum(np.rint(times * shot.motion.fps), shot.motion.num_frames - 1).astype(int)
            )
            for shot in self._shots
        ]
        canvas = self._backdrop
        draw = self._draw.Draw(canvas)
        for frame in range(num_frames):
            for place, run in zip(self._places, runs, strict=True):
                canvas.paste(next(run), place)
            played = self.size[0] * (frame + 1) / num_frames
            draw.rectangle((0, self.size[1] - 4, played, self.size[1]), fill=_ACCENT)
            yield canvas


def _strip(motion: Motion, num_poses: int, mesh: BodyMesh | None) -> Image:
    """One row: poses at even times from the first frame to the last, caption below."""
    image_module, draw_module, _ = pillow()
    cell = (168, 248)
    count = min(num_poses, motion.num_frames)
    frames = np.rint(np.linspace(0, motion.num_frames - 1, count)).astype(int)
    text = caption(motion, num_poses * cell[0], 15)
    row = image_module.new("RGB", (num_poses * cell[0], cell[1] + text.height), PAPER)
    draw = draw_module.Draw(row)
    for k, picture in enumerate(_Shot(motion, cell, mesh).paint(frames)):
        row.paste(picture, (k * cell[0], 0))
        stamp = f"{frames[k] / motion.fps:.2f} s"
        draw.text((k * cell[0] + 8, cell[1] - 18), stamp, fill=(112, 122, 142))
    row.paste(text, (0, cell[1]))
    return row
