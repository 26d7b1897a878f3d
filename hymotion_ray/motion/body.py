"""A body's surface: linear blend skinning, and a clip's lowest vertex without skinning it all.

It knows bone weights and boxes around vertices; the fingers are part of their wrist, as everywhere
in this room. It knows no files, and no floor rule other than "the lowest vertex".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from hymotion_ray.errors import InputError
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, NUM_JOINTS, WRISTS, Skeleton

# Slack under a box's lower bound, in metres: far above float32 rounding of a few metres' height.
_SLACK = 1e-4
# Which body joint moves each of the 52 bones: the fingers are rigid with the wrist.
_BONES = np.array([*range(NUM_BODY_JOINTS), *[WRISTS[0]] * 15, *[WRISTS[1]] * 15])


@dataclass(frozen=True, eq=False)
class BodyMesh:
    """A skinned surface at rest; numpy arrays, metres. Raises InputError when they do not fit."""

    vertices: np.ndarray
    """Rest positions (V, 3) float32."""
    skin_weights: np.ndarray
    """Weights (V, 4) float32 of four bones a vertex, none negative, each row's sum 1."""
    skin_indices: np.ndarray
    """The four bones (V, 4), integers from 0 to 51."""
    faces: np.ndarray
    """Vertex numbers (F, 3) of the triangles, integers."""

    def __post_init__(self) -> None:
        num_vertices = len(self.vertices)
        shapes = {
            "vertices": (self.vertices, (num_vertices, 3)),
            "skin_weights": (self.skin_weights, (num_vertices, 4)),
            "skin_indices": (self.skin_indices, (num_vertices, 4)),
            "faces": (self.faces, (len(self.faces), 3)),
        }
        for name, (array, shape) in shapes.items():
            if array.shape != shape or num_vertices == 0:
                raise InputError(
                    f"a body mesh's {name} has shape {array.shape}; allowed: {shape}, no empty mesh"
                )
        limits = {
            "skin_indices": (self.skin_indices, NUM_JOINTS),
            "faces": (self.faces, num_vertices),
        }
        for name, (array, limit) in limits.items():
            if array.size and not 0 <= int(array.min()) <= int(array.max()) < limit:
                raise InputError(
                    f"a body mesh's {name} run from {array.min()} to {array.max()}; allowed: 0 to"
                    f" {limit - 1}"
                )
        weights = self.skin_weights
        if not (weights.min() >= 0 and np.abs(weights.sum(axis=1) - 1).max() < 0.01):
            raise InputError(
                f"a body mesh's skin weights go down to {weights.min()} and their rows sum to"
                f" {weights.sum(axis=1).min()} to {weights.sum(axis=1).max()}; allowed: no weight"
                " under 0, sums of 1"
            )


def _skinning_matrix(mesh: BodyMesh, skeleton: Skeleton) -> csr_array:
    """Sparse (V, 88) float32: times a clip's bone rows (88, any) it gives the skinned vertices.

    Columns 4 b to 4 b + 2 hold a vertex's place seen from bone b's joint, times its weight there;
    column 4 b + 3 the weight.
    """
    num_vertices = len(mesh.vertices)
    bones = _BONES[mesh.skin_indices]
    seen = mesh.vertices[:, None, :] - skeleton.rest[bones]
    values = np.concatenate([seen, np.ones((num_vertices, 4, 1))], axis=2)
    values = values * mesh.skin_weights[:, :, None]
    columns = 4 * bones[:, :, None] + np.arange(4)
    rows = np.broadcast_to(np.arange(num_vertices)[:, None, None], columns.shape)
    entries = (values.ravel().astype(np.float32), (rows.ravel(), columns.ravel()))
    matrix = csr_array(entries, shape=(num_vertices, 4 * NUM_BODY_JOINTS))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _bone_rows(world: Tensor, joints: Tensor) -> Tensor:
    """Rows (88, L, 3) of a clip: for each bone the three columns of its rotation, then its place.

    world: (L, 22, 3, 3) rotations; joints: (L, 52, 3) positions.
    """
    places = joints[:, :NUM_BODY_JOINTS, :, None]
    rows = torch.cat([world, places], dim=-1).permute(1, 3, 0, 2)
    return rows.reshape(4 * NUM_BODY_JOINTS, -1, 3)


def skin(mesh: BodyMesh, skeleton: Skeleton, world: Tensor, joints: Tensor) -> Tensor:
    """Skinned vertices (L, V, 3) float32 by linear blend skinning, in the axes of `joints`.

    skeleton: the body that the mesh was bound to; world: (L, 22, 3, 3) world rotations; joints:
    (L, 52, 3), with the translation where the vertices shall have it. Large: 290 kB a frame for
    24,256 vertices.
    """
    rows = _bone_rows(world, joints).float().numpy()
    flat = _skinning_matrix(mesh, skeleton) @ rows.reshape(len(rows), -1)
    return torch.from_numpy(flat.reshape(len(mesh.vertices), -1, 3)).permute(1, 0, 2).contiguous()


class LowestVertex:
    """Finds the height of a clip's lowest vertex, skinning only what can be lowest.

    Vertices are grouped by their heaviest bone. For each group and each bone that moves it there is
    a box that holds the group, seen from that bone. A skinned vertex is a weighted mean of where
    its bones would carry it, so the lowest corner of those boxes is a bound from below: a group, or
    a frame of it, whose bound lies above a vertex already found is left out. The result is exact.
    """

    def __init__(self, mesh: BodyMesh, skeleton: Skeleton) -> None:
        """mesh: the surface; skeleton: the body that it was bound to."""
        skinning = _skinning_matrix(mesh, skeleton)
        bones = _BONES[mesh.skin_indices]
        heaviest = bones[np.arange(len(bones)), mesh.skin_weights.argmax(axis=1)]
        self._groups: list[csr_array] = []
        starts: list[int] = []
        centres: list[np.ndarray] = []
        halves: list[np.ndarray] = []
        for group in np.unique(heaviest):
            members = np.flatnonzero(heaviest == group)
            self._groups.append(skinning[members])
            starts.append(len(centres))
            used = bones[members][mesh.skin_weights[members] > 0]
            for bone in np.unique(used):
                moved = ((bones[members] == bone) & (mesh.skin_weights[members] > 0)).any(axis=1)
                seen = mesh.vertices[members[moved]] - skeleton.rest[bone]
                centre, half = np.zeros((2, NUM_BODY_JOINTS, 4))
                centre[bone] = [*(seen.max(axis=0) + seen.min(axis=0)) / 2, 1]
                half[bone, :3] = (seen.max(axis=0) - seen.min(axis=0)) / 2
                centres.append(centre.ravel())
                halves.append(half.ravel())
        self._starts = np.array(starts)
        self._centres = csr_array(np.array(centres, dtype=np.float32))
        self._halves = csr_array(np.array(halves, dtype=np.float32))
        sums = mesh.skin_weights.sum(axis=1)
        self._weight_error = float(np.abs(sums - 1).max())

    def heights(self, world: Tensor, joints: Tensor, lengths: Sequence[int]) -> list[float]:
        """Lowest height in metres of each clip of those laid end to end.

        world: (sum of L, 22, 3, 3) world rotations; joints: (sum of L, 52, 3) world positions;
        lengths: frames of each clip.
        """
        rows = _bone_rows(world, joints)[..., 1].float().contiguous().numpy()
        corners = self._centres @ rows - self._halves @ np.abs(rows)
        bounds = np.minimum.reduceat(corners, self._starts, axis=0)
        bounds -= self._weight_error * np.abs(bounds) + _SLACK
        ends = np.cumsum(lengths)
        clips = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        return [self._clip_height(rows[:, clip], bounds[:, clip]) for clip in clips]

    def _clip_height(self, rows: np.ndarray, bounds: np.ndarray) -> float:
        """Lowest height of one clip: bone rows (88, L), bounds (groups, L)."""
        lowest = np.inf
        group_bounds = bounds.min(axis=1)
        for group in np.argsort(group_bounds):
            if group_bounds[group] >= lowest:
                break
            frames = np.flatnonzero(bounds[group] < lowest)
            heights = self._groups[group] @ np.ascontiguousarray(rows[:, frames])
            lowest = min(lowest, float(heights.min()))
        return lowest
