"""The lowest vertex found in pieces is the lowest of the whole skinned surface."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from motion_clips import make_clip

from hymotion_ray.errors import InputError
from hymotion_ray.motion.body import BodyMesh, LowestVertex, skin
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import Skeleton


def test_a_body_at_rest_is_the_mesh_moved(crooked: Skeleton, mesh: BodyMesh) -> None:
    rot6d = torch.tensor([1.0, 0, 0, 1, 0, 0]).repeat(2, 22, 1)
    motion = Motion.from_rotations(rot6d, torch.tensor([[0.0, 0, 0], [1, 2, 3]]), crooked, 30)
    vertices = skin(mesh, crooked, motion.global_rotations(), motion.joints)
    moved = mesh.vertices + np.array([[[0, 0, 0]], [[1, 2, 3]]])
    np.testing.assert_allclose(vertices, moved, atol=1e-5)


def test_skinning_is_the_weighted_mean_of_52_rigid_bones(crooked: Skeleton, mesh: BodyMesh) -> None:
    rot6d, transl = make_clip(3)
    local = rot6d_to_matrix(rot6d.double())
    fingers = torch.eye(3, dtype=torch.float64).expand(3, 30, 3, 3)
    world, posed = forward_kinematics(torch.cat([local, fingers], dim=1), crooked)
    joints = posed + transl[:, None]
    vertices = skin(mesh, crooked, world[:, :22], joints)
    expected = np.zeros((3, len(mesh.vertices), 3))
    for slot in range(4):
        bone = mesh.skin_indices[:, slot].astype(int)
        seen = (mesh.vertices - crooked.rest[bone]).astype(np.float64)
        carried = np.einsum("lvij,vj->lvi", world.numpy()[:, bone], seen) + joints.numpy()[:, bone]
        expected += mesh.skin_weights[:, slot, None] * carried
    np.testing.assert_allclose(vertices, expected, atol=1e-5)


@pytest.mark.parametrize("speed", [0.0, 0.05, 1.0])
def test_lowest_vertex_is_that_of_the_skinned_surface(
    speed: float, crooked: Skeleton, mesh: BodyMesh
) -> None:
    lengths = [1, 40, 13, 80]
    clips = [
        Motion.from_rotations(*make_clip(n, seed=n, speed=speed), crooked, 30) for n in lengths
    ]
    world = torch.cat([clip.global_rotations() for clip in clips])
    joints = torch.cat([clip.joints for clip in clips])
    found = LowestVertex(mesh, crooked).heights(world, joints, lengths)
    for clip, height in zip(clips, found, strict=True):
        vertices = skin(mesh, crooked, clip.global_rotations(), clip.joints)
        assert height == pytest.approx(float(vertices[..., 1].min()), abs=2e-6)
        alone = LowestVertex(mesh, crooked).heights(
            clip.global_rotations(), clip.joints, [clip.num_frames]
        )
        assert alone == [height]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vertices": np.zeros((3, 2), "f4")}, "vertices"),
        ({"skin_indices": np.full((400, 4), 52)}, "skin_indices run"),
        ({"faces": np.full((1, 3), 400)}, "faces run"),
        ({"skin_weights": np.full((400, 4), 0.5, "f4")}, "sum to"),
        ({"skin_weights": np.tile(np.float32([1.5, -0.5, 0, 0]), (400, 1))}, "-0.5"),
        ({"skin_weights": np.full((400, 4), np.nan, "f4")}, "skin weights"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(
    change: dict[str, np.ndarray], words: str, mesh: BodyMesh
) -> None:
    with pytest.raises(InputError, match=words):
        replace(mesh, **change)
