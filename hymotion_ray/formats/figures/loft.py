"""Lofts: closed surfaces through a row of rings. Knows geometry only.

Shape letters: V vertices, F faces, K rings, S sides of a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]
Shape = tuple[Doubles, NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Part:
    """A closed piece of a figure: vertices (V,3), faces (F,3), weights (V,22), one tone."""

    vertices: Doubles
    faces: NDArray[np.int64]
    weights: Doubles
    tone: int


def loft(
    centres: Doubles,
    half_widths: Doubles,
    half_depths: Doubles,
    side: ArrayLike,
    front: ArrayLike,
    num_sides: int,
    squareness: float = 2.0,
) -> Shape:
    """A closed surface through K superelliptic rings, capped at both ends.

    centres (K,3) in metres, in order; half_widths (K,) along `side`, half_depths (K,) along
    `front`, both unit vectors; squareness 2 gives ellipses, more gives rounded boxes (Lame
    curves). Faces look outwards whichever way the rings run.
    """
    u, v = np.asarray(side, dtype=np.float64), np.asarray(front, dtype=np.float64)
    angle = 2 * np.pi * np.arange(num_sides) / num_sides
    cos, sin = (np.sign(f) * np.abs(f) ** (2 / squareness) for f in (np.cos(angle), np.sin(angle)))
    rings = (
        centres[:, None]
        + half_widths[:, None, None] * cos[None, :, None] * u
        + half_depths[:, None, None] * sin[None, :, None] * v
    )
    vertices = np.concatenate([rings.reshape(-1, 3), centres[:1], centres[-1:]])
    faces = _tube_faces(len(centres), num_sides)
    if np.cross(u, v) @ (centres[-1] - centres[0]) < 0:
        faces = faces[::-1, [0, 2, 1]]  # keeps the two triangles of a quad in order
    return vertices, faces


def _tube_faces(num_rings: int, num_sides: int) -> NDArray[np.int64]:
    """Faces of K rings of S vertices and then the two cap centres, for rings that run along u x v.

    The two triangles of a quad follow each other, so that a painter can draw them as one polygon.
    """
    here = np.arange(num_sides)
    beyond = (here + 1) % num_sides
    faces: list[NDArray[np.int64]] = []
    for ring in range(num_rings - 1):
        low, high = ring * num_sides, (ring + 1) * num_sides
        near = np.stack([low + here, low + beyond, high + beyond], axis=1)
        far = np.stack([low + here, high + beyond, high + here], axis=1)
        faces.append(np.stack([near, far], axis=1).reshape(-1, 3))
    first, last = num_rings * num_sides, num_rings * num_sides + 1
    top = (num_rings - 1) * num_sides
    faces.append(np.stack([np.full(num_sides, first), beyond, here], axis=1))
    faces.append(np.stack([np.full(num_sides, last), top + here, top + beyond], axis=1))
    return np.concatenate(faces)


def ball(
    centre: Sequence[float] | Doubles,
    radius: float | Doubles,
    num_sides: int,
    squareness: float = 2.0,
) -> Shape:
    """An ellipsoid, with more squareness a rounded box; `radius` one number or three (x, y, z)."""
    radii = np.broadcast_to(np.asarray(radius, dtype=np.float64), (3,))
    angle = np.linspace(0, np.pi, num_sides // 2 + 1)
    height, width = -np.cos(angle), np.sin(angle)
    width = np.maximum(np.abs(width) ** (2 / squareness), 0.02)
    height = np.sign(height) * np.abs(height) ** (2 / squareness)
    centres = np.asarray(centre, dtype=np.float64) + np.stack(
        [np.zeros_like(height), height * radii[1], np.zeros_like(height)], axis=1
    )
    return loft(
        centres, width * radii[0], width * radii[2], (1, 0, 0), (0, 0, 1), num_sides, squareness
    )
