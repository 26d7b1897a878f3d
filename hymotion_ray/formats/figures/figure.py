"""A skinned figure to draw or export, and a model's own body mesh brought to that form.

Does not know any file format, nor how a figure is made where the model brings no body: that is
`mannequin`.

Shape letters: V vertices, F faces, J joints.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, PARENTS

Floats = NDArray[np.float32]
# What a vertex is painted with; the consumer chooses the colours. Left and right differ in a hint
# of colour, so that a swap of sides is seen at once.
BODY, JOINT, FACE, LEFT, RIGHT = range(5)
TONE_NAMES = ("Body", "Joint", "Face", "Left", "Right")
# sRGB colours of the tones, for consumers without a choice of their own.
TONE_COLOURS = ((225, 221, 213), (72, 78, 92), (38, 43, 54), (120, 168, 222), (236, 160, 112))


@dataclass(frozen=True, eq=False)
class Figure:
    """A skinned mesh on the 22 body joints, rest pose, metres, Y up.

    vertices (V,3) f4; normals (V,3) f4, unit; faces (F,3) i4, counter-clockwise from outside;
    skin_indices (V,4) u1 below 22; skin_weights (V,4) f4, rows sum to 1; tones (V,) u1 from BODY to
    RIGHT.
    """

    vertices: Floats
    normals: Floats
    faces: NDArray[np.int32]
    skin_indices: NDArray[np.uint8]
    skin_weights: Floats
    tones: NDArray[np.uint8]


def from_body_mesh(mesh: BodyMesh) -> Figure:
    """A model's body mesh as a figure. Fingers are rigid with their wrist, so 22 joints suffice."""
    owner = np.array([_body_joint(j) for j in range(len(PARENTS))], dtype=np.uint8)
    vertices = np.asarray(mesh.vertices, dtype=np.float32)
    faces = np.asarray(mesh.faces, dtype=np.int32).reshape(-1, 3)
    dense = np.zeros((len(vertices), NUM_BODY_JOINTS))
    rows = np.arange(len(vertices))
    for k in range(mesh.skin_indices.shape[1]):
        dense[rows, owner[mesh.skin_indices[:, k]]] += mesh.skin_weights[:, k]
    skin_indices, skin_weights = strongest(dense)
    return Figure(
        vertices=vertices,
        normals=vertex_normals(vertices, faces),
        faces=faces,
        skin_indices=skin_indices,
        skin_weights=skin_weights,
        tones=np.zeros(len(vertices), dtype=np.uint8),
    )


def strongest(dense: NDArray[np.float64]) -> tuple[NDArray[np.uint8], Floats]:
    """The four strongest of weights (V,22) as indices (V,4) u1 and weights (V,4) f4 of sum 1.

    Each joint stands once in a row, unused places are joint 0 at weight 0, as glTF wants it.
    """
    order = np.argsort(-dense, axis=1, kind="stable")[:, :4]
    weights = np.take_along_axis(dense, order, axis=1)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.where(weights > 0, order, 0).astype(np.uint8), weights.astype(np.float32)


def vertex_normals(vertices: Floats, faces: NDArray[np.int32]) -> Floats:
    """(V,3) unit normals, each face weighted by its area; unused vertices point up."""
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    face_normals = np.cross(b - a, c - a)
    normals = np.zeros_like(vertices, dtype=np.float64)
    for k in range(3):
        np.add.at(normals, faces[:, k], face_normals)
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    unit = np.where(length > 1e-12, normals / np.maximum(length, 1e-12), [0.0, 1.0, 0.0])
    return unit.astype(np.float32)


def _body_joint(joint: int) -> int:
    while joint >= NUM_BODY_JOINTS:
        joint = PARENTS[joint]
    return joint
