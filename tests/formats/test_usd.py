"""Our USD gives the same joints through UsdSkel's own queries."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sample_motions import META, WITHIN_MM, crooked_skeleton, tumble

from hymotion_ray.errors import MissingDependencyError
from hymotion_ray.formats.figures.drawing import posed_vertices
from hymotion_ray.formats.figures.mannequin import mannequin
from hymotion_ray.formats.motions.usd import write_usda


@pytest.fixture
def stage(tmp_path):
    usd = pytest.importorskip("pxr.Usd")
    path = tmp_path / "clip.usda"
    path.write_bytes(write_usda(MOTION))
    return usd.Stage.Open(str(path))


MOTION = tumble(num_frames=20, skeleton=crooked_skeleton())


def test_skeleton_query_gives_the_same_joints(stage):
    from pxr import Usd, UsdSkel

    cache = UsdSkel.Cache()
    cache.Populate(UsdSkel.Root.Get(stage, "/Motion"), Usd.TraverseInstanceProxies())
    query = cache.GetSkelQuery(UsdSkel.Skeleton.Get(stage, "/Motion/Skeleton"))
    for frame in range(0, 20, 6):
        matrices = query.ComputeJointSkelTransforms(frame)
        places = np.array([matrix.ExtractTranslation() for matrix in matrices])
        assert np.abs(places - MOTION.joints[frame, :22].numpy()).max() < WITHIN_MM


def test_skin_moves_as_ours(stage):
    from pxr import UsdGeom, UsdSkel

    UsdSkel.BakeSkinning(UsdSkel.Root.Get(stage, "/Motion"))
    points = UsdGeom.Mesh.Get(stage, "/Motion/Figure").GetPointsAttr()
    ours = posed_vertices(mannequin(MOTION.skeleton), MOTION, np.array([0, 11]))
    for k, frame in enumerate((0, 11)):
        assert np.abs(np.array(points.Get(frame)) - ours[k]).max() < WITHIN_MM


def test_stage_says_units_axis_time_and_origin(stage):
    from pxr import UsdGeom

    assert UsdGeom.GetStageUpAxis(stage) == "Y"
    assert UsdGeom.GetStageMetersPerUnit(stage) == 1.0
    assert (stage.GetTimeCodesPerSecond(), stage.GetEndTimeCode()) == (30.0, 19.0)
    custom = stage.GetDefaultPrim().GetCustomData()
    assert {key: custom[key] for key in META} == META


def test_seed_beyond_32_bits_and_odd_keys():
    pytest.importorskip("pxr.Usd")
    text = write_usda(tumble(num_frames=2, meta={"seed": 2**40, "a:b": 0.5})).decode()
    assert f'"{2**40}"' in text


def test_missing_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pxr", None)
    with pytest.raises(MissingDependencyError, match=r"hymotion-ray\[export\]"):
        write_usda(tumble(num_frames=2))
