"""Draws a posed figure with Pillow: one camera, flat-shaded faces, a soft shadow and a floor grid.

Knows projection, shading and painter's order. Does not know clips, captions or video files; Pillow
comes with the extra [export] and is imported when a picture is made.

Shape letters: L frames, V vertices, F faces, J joints.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.errors import MissingDependencyError
from hymotion_ray.formats.figures.figure import FACE, JOINT, TONE_COLOURS, Figure, Floats
from hymotion_ray.motion.motion import Motion

if TYPE_CHECKING:
    from PIL.Image import Image

Doubles = NDArray[np.floating]
BACKGROUND = (238, 240, 244)
_GRID = (200, 205, 214)
_SHADOW = (150, 157, 170)
# Light comes from above and the figure's front left; a fill from the right lifts the dark side.
_SUN = np.array((0.45, 0.80, 0.40)) / np.linalg.norm((0.45, 0.80, 0.40))
_FILL = np.array((-0.70, 0.15, 0.45)) / np.linalg.norm((-0.70, 0.15, 0.45))
_NEAR = 0.2
_REACH = 3.0


def _grid_pieces() -> Doubles:
    """(F,2,3) ends of half-metre pieces of grid lines on the floor, round the origin."""
    steps = np.arange(-_REACH, _REACH + 0.01, 0.5)
    across, along = np.meshgrid(steps, steps[:-1])
    start = np.stack([across.ravel(), 0 * across.ravel(), along.ravel()], axis=1)
    pieces = np.stack([start, start + np.array((0.0, 0.0, 0.5))], axis=1)
    return np.concatenate([pieces, pieces[..., ::-1]])


_GRID_PIECES = _grid_pieces()


def pillow() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Pillow's Image, ImageDraw and ImageFilter modules, or `MissingDependencyError`."""
    try:
        from PIL import Image, ImageDraw, ImageFilter
    except ImportError as cause:
        raise MissingDependencyError(
            "pictures and videos need Pillow, which is not installed; run"
            " `pip install 'hymotion-ray[export]'`"
        ) from cause
    return Image, ImageDraw, ImageFilter


@dataclass(frozen=True)
class Camera:
    """A pinhole camera that looks at `target` (3,) from `distance` metres.

    azimuth 0 looks at a figure's face (from +Z), positive moves towards its left (+X); elevation
    above the horizon; both in degrees. fov: vertical field of view in degrees.
    """

    target: tuple[float, float, float]
    distance: float
    azimuth: float = 28.0
    elevation: float = 14.0
    fov: float = 32.0

    @cached_property
    def axes(self) -> Doubles:
        """(3,3) rows: the camera's right, up and backward directions in world axes."""
        a, e = np.radians(self.azimuth), np.radians(self.elevation)
        back = np.array((np.sin(a) * np.cos(e), np.sin(e), np.cos(a) * np.cos(e)))
        right = np.array((np.cos(a), 0.0, -np.sin(a)))
        return np.stack([right, np.cross(back, right), back])

    @cached_property
    def position(self) -> Doubles:
        """(3,) where the camera stands, in world axes."""
        return np.asarray(self.target) + self.distance * self.axes[2]

    def project(self, points: Doubles, size: tuple[int, int]) -> tuple[Doubles, Doubles]:
        """Pixels (...,2), y down, and depth (...,) in metres of world points (...,3)."""
        seen = (points - self.position) @ self.axes.T
        depth = -seen[..., 2]
        focal = 0.5 * size[1] / np.tan(np.radians(self.fov) / 2)
        scale = focal / np.maximum(depth, _NEAR)
        pixels = np.stack(
            [size[0] / 2 + seen[..., 0] * scale, size[1] / 2 - seen[..., 1] * scale], axis=-1
        )
        return pixels, depth


def posed_vertices(figure: Figure, motion: Motion, frames: NDArray[np.int64]) -> Floats:
    """(L,V,3) f4 world positions of the vertices in the chosen frames: linear blend skinning."""
    rotations = motion.global_rotations()[frames].numpy().astype(np.float32)
    joints = motion.joints[frames, : rotations.shape[1]].numpy().astype(np.float32)
    rest = motion.skeleton.rest[: rotations.shape[1]]
    shifts = joints - (rotations @ rest[None, :, :, None])[..., 0]
    posed = np.zeros((len(frames), len(figure.vertices), 3), dtype=np.float32)
    for k in range(4):
        used = figure.skin_weights[:, k] > 0
        bones = figure.skin_indices[used, k]
        moved = (rotations[:, bones] @ figure.vertices[used, :, None])[..., 0] + shifts[:, bones]
        posed[:, used] += figure.skin_weights[used, k, None] * moved
    return posed


class Painter:
    """Paints frames of one size; drawn at twice the size and reduced, so that edges are smooth."""

    def __init__(self, figure: Figure, size: tuple[int, int]) -> None:
        self.figure = figure
        self.size = size
        self._big = (2 * size[0], 2 * size[1])
        self._polygons = _quads(figure.faces)
        tone = figure.tones[self._polygons[:, 0]]
        self._albedo = (np.array(TONE_COLOURS, dtype=np.float32) / 255)[tone] ** 2.2
        # Parts that lie in or on others are sorted as if farther off or nearer.
        self._bias = np.select([tone == JOINT, tone == FACE], [0.03, -0.03], 0.0)
        self._image, self._draw, self._filter = pillow()

    def paint(self, vertices: Doubles, camera: Camera) -> Image:
        """One frame as an RGB image of `size`; vertices (V,3) in world axes, floor at y = 0."""
        canvas = self._image.new("RGB", self._big, BACKGROUND)
        draw = self._draw.Draw(canvas)
        self._paint_floor(draw, camera)
        self._paint_shadow(canvas, vertices, camera)
        self._paint_figure(draw, vertices, camera)
        return canvas.reduce(2)

    def _paint_floor(self, draw: object, camera: Camera) -> None:
        """Grid lines every half metre round the target, fading into the background."""
        centre = np.array((camera.target[0], 0.0, camera.target[2]))
        pieces = _GRID_PIECES + np.round(2 * centre) / 2
        far = np.linalg.norm(pieces.mean(axis=1) - centre, axis=1) / _REACH
        pixels, depth = camera.project(pieces, self._big)
        shown = (far < 0.99) & (depth.min(axis=1) > _NEAR)
        strength = 1 - far[shown, None] ** 2
        colours = np.array(BACKGROUND) * (1 - strength) + np.array(_GRID) * strength
        ends = pixels[shown].reshape(-1, 4).tolist()
        for line, colour in zip(ends, colours.astype(int).tolist(), strict=True):
            draw.line(line, fill=tuple(colour), width=2)  # type: ignore[attr-defined]

    def _paint_shadow(self, canvas: Image, vertices: Doubles, camera: Camera) -> None:
        """The figure pressed on the floor along the light, blurred, at an eighth of the size."""
        ground = vertices - vertices[:, 1:2] / _SUN[1] * _SUN
        small = (self._big[0] // 8, self._big[1] // 8)
        pixels, _ = camera.project(ground, small)
        mask = self._image.new("L", small, 0)
        draw = self._draw.Draw(mask)
        lit = _normals(vertices, self._polygons) @ _SUN > 0
        for corners in _flat(pixels[self._polygons[lit]]):
            draw.polygon(corners, fill=170)
        margin = max(2, small[1] // 30)
        box = mask.getbbox()
        if box is None:
            return
        box = (
            max(box[0] - margin, 0), max(box[1] - margin, 0),
            min(box[2] + margin, small[0]), min(box[3] + margin, small[1]),
        )  # fmt: skip
        soft = mask.crop(box).filter(self._filter.GaussianBlur(margin / 2.5))
        soft = soft.resize((8 * soft.width, 8 * soft.height))
        canvas.paste(_SHADOW, (8 * box[0], 8 * box[1]), soft)

    def _paint_figure(self, draw: object, vertices: Doubles, camera: Camera) -> None:
        polygons = self._polygons
        normals = _normals(vertices, polygons)
        seen = ((camera.position - vertices[polygons[:, 0]]) * normals).sum(axis=1) > 0
        pixels, depth = camera.project(vertices, self._big)
        visible = np.flatnonzero(seen & (depth[polygons].min(axis=1) > _NEAR))
        distance = depth[polygons[visible]].mean(axis=1) + self._bias[visible]
        order = visible[np.argsort(-distance, kind="stable")]
        colours = _shade(self._albedo[order], normals[order], camera).tolist()
        polygon = draw.polygon  # type: ignore[attr-defined]
        for corners, colour in zip(_flat(pixels[polygons[order]]), colours, strict=True):
            polygon(corners, fill=tuple(colour))


def _flat(pixels: Doubles) -> list[list[float]]:
    """Corners (F,4,2) as Pillow takes them, eight numbers a polygon."""
    return pixels.reshape(-1, 8).tolist()


def _quads(faces: NDArray[np.int32]) -> NDArray[np.int32]:
    """(F,4) polygons of triangles (F,3): neighbours in the list that share an edge become one quad.

    A triangle that stands alone repeats its last corner.
    """
    polygons, k = [], 0
    while k < len(faces):
        a, b, c = faces[k]
        if k + 1 < len(faces) and faces[k + 1, 0] == a and faces[k + 1, 1] == c:
            polygons.append((a, b, c, faces[k + 1, 2]))
            k += 2
        else:
            polygons.append((a, b, c, c))
            k += 1
    return np.array(polygons, dtype=np.int32)


def _normals(vertices: Doubles, polygons: NDArray[np.int32]) -> Doubles:
    """(F,3) unit normals of polygons (F,4), from their diagonals."""
    a, b, c, d = (vertices[polygons[:, k]] for k in range(4))
    normals = _cross(c - a, d - b)
    return normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)


def _cross(a: Doubles, b: Doubles) -> Doubles:
    """Cross product of (F,3) with (F,3); numpy's own is several times slower on short arrays."""
    x = a[:, 1] * b[:, 2] - a[:, 2] * b[:, 1]
    y = a[:, 2] * b[:, 0] - a[:, 0] * b[:, 2]
    return np.stack([x, y, a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]], axis=1)


def _shade(albedo: Doubles, normals: Doubles, camera: Camera) -> NDArray[np.uint8]:
    """(F,3) sRGB bytes: sun, fill light, sky from above and a faint rim (Lambert's law)."""
    sun = np.clip(normals @ _SUN, 0, None)
    fill = np.clip(normals @ _FILL, 0, None)
    sky = 0.5 + 0.5 * normals[:, 1]
    rim = np.clip(1 - np.abs(normals @ camera.axes[2]), 0, 1) ** 3
    light = 0.16 + 0.26 * sky + 0.66 * sun + 0.14 * fill
    linear = albedo * light[:, None] + 0.06 * rim[:, None]
    return (255 * np.clip(linear, 0, 1) ** (1 / 2.2)).astype(np.uint8)
