"""The figures that are drawn: closed, lit from outside, on the floor, rigid where the body is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sample_motions import body_mesh, crooked_skeleton, stand, tumble

from hymotion_ray.formats.figures.drawing import posed_vertices
from hymotion_ray.formats.figures.figure import LEFT, RIGHT, from_body_mesh
from hymotion_ray.formats.figures.mannequin import mannequin
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton

SKELETONS = {
    "generic": generic_skeleton(),
    "crooked": crooked_skeleton(),
    "child": Skeleton(generic_skeleton().rest * 0.5),
    "one point": Skeleton(np.zeros((52, 3), dtype=np.float32)),
}


@pytest.mark.parametrize("name", SKELETONS)
def test_arrays_fit_together(name):
    figure = mannequin(SKELETONS[name])
    assert np.isfinite(figure.vertices).all()
    assert np.allclose(np.linalg.norm(figure.normals, axis=1), 1, atol=1e-5)
    assert np.allclose(figure.skin_weights.sum(axis=1), 1, atol=1e-6)
    assert figure.skin_indices.max() < 22
    assert set(np.unique(figure.faces)) == set(range(len(figure.vertices)))


@pytest.mark.parametrize("name", ["generic", "crooked", "child"])
def test_surface_is_closed_and_looks_outwards(name):
    figure = mannequin(SKELETONS[name])
    edges = np.concatenate([figure.faces[:, [k, (k + 1) % 3]] for k in range(3)])
    forth = {tuple(edge) for edge in edges.tolist()}
    assert len(forth) == len(edges)  # no edge twice the same way round
    assert forth == {(b, a) for a, b in forth}  # and every edge once each way
    a, b, c = (figure.vertices[figure.faces[:, k]].astype(np.float64) for k in range(3))
    assert (np.cross(a, b) * c).sum() / 6 > 0.03 * np.ptp(figure.vertices[:, 1]) ** 3 / 1.75**3


def test_it_stands_on_the_floor_and_left_is_left():
    motion = stand(1)
    figure = mannequin(motion.skeleton)
    posed = posed_vertices(figure, motion, np.array([0]))[0]
    assert abs(posed[:, 1].min()) < 0.005
    assert 1.6 < posed[:, 1].max() < 1.9
    assert posed[figure.tones == LEFT, 0].min() > 0 > posed[figure.tones == RIGHT, 0].max()


def test_wrists_elbows_and_knees_stay_inside_the_figure():
    """A joint lies within its part in every pose, so that limbs never come apart."""
    motion = tumble()
    figure = mannequin(motion.skeleton)
    posed = posed_vertices(figure, motion, np.arange(0, 40, 13))
    for k, frame in enumerate(range(0, 40, 13)):
        for joint in (4, 5, 18, 19, 20, 21):
            distance = np.linalg.norm(posed[k] - motion.joints[frame, joint].numpy(), axis=1)
            assert distance.min() < 0.06


def test_body_mesh_moves_as_with_all_52_joints():
    skeleton = crooked_skeleton()
    mesh, motion = body_mesh(skeleton), tumble(skeleton=skeleton)
    posed = posed_vertices(from_body_mesh(mesh), motion, np.array([0, 20]))
    for k, frame in enumerate((0, 20)):
        world = motion.global_rotations()[frame]
        world = torch.cat([world, world[[20] * 15 + [21] * 15]]).numpy()
        shift = motion.joints[frame].numpy() - np.einsum("jab,jb->ja", world, skeleton.rest)
        moved = np.einsum("vkab,vb->vka", world[mesh.skin_indices], mesh.vertices)
        moved += shift[mesh.skin_indices]
        expected = (mesh.skin_weights[..., None] * moved).sum(axis=1)
        assert np.abs(posed[k] - expected).max() < 1e-5
