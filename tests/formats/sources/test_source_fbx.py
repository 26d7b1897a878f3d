"""FBX through ufbx, where pufbx is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hymotion_ray.formats.motions.fbx import write_fbx
from hymotion_ray.formats.sources import (
    SourceClip,
    SourceReject,
    list_sources,
    read_source,
    to_motion,
)
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d, rotvec_to_matrix
from hymotion_ray.motion.skeleton import JOINT_NAMES, generic_skeleton

SKELETON = generic_skeleton()


def read(path: Path) -> list[SourceClip | SourceReject]:
    (file,) = list_sources([path])
    return list(read_source(file))


def squat() -> Motion:
    turns = torch.zeros(50, 22, 3, dtype=torch.float64)
    bend = torch.sin(torch.arange(50) / 8).square()
    turns[:, 1:3, 0], turns[:, 4:6, 0] = -bend[:, None], 1.6 * bend[:, None]
    turns[:, 0, 1] = 0.4
    return Motion.from_rotations(
        matrix_to_rot6d(rotvec_to_matrix(turns)), torch.zeros(50, 3), SKELETON, 30
    )


@pytest.mark.filterwarnings("ignore")
def test_our_own_fbx_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("pufbx")
    motion = squat()
    (tmp_path / "own.fbx").write_bytes(write_fbx(motion))
    (clip,) = read(tmp_path / "own.fbx")
    assert isinstance(clip, SourceClip)
    unit = float(clip.provenance["unit_m"]) * 100  # the file is in centimetres
    for name in JOINT_NAMES[:22]:
        theirs = clip.positions[:, clip.joint_names.index(name)]
        ours = motion.joints[:, JOINT_NAMES.index(name)].numpy()
        assert np.linalg.norm(theirs / unit - ours, axis=1).max() < 1e-3, name
    back, fit = to_motion(clip, SKELETON)
    assert fit.mean_angle_deg < 1e-3
    np.testing.assert_allclose(back.local_rotations(), motion.local_rotations(), atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_real_file_that_is_no_humanoid(shared: Path) -> None:
    pytest.importorskip("pufbx")
    (found,) = read(shared / "motions" / "fbx" / "assimp_animation_with_skeleton.fbx")
    assert isinstance(found, SourceReject)
    assert found.code == "unknown_skeleton"


@pytest.mark.parametrize("content", [b"Kaydara FBX Binary  \x00\x1a\x00", b"text", b"\x00" * 99])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("pufbx")
    (tmp_path / "a.fbx").write_bytes(content)
    (found,) = read(tmp_path / "a.fbx")
    assert isinstance(found, SourceReject)
    assert found.code in ("damaged", "no_motion")


def test_without_pufbx_the_reason_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pufbx", None)
    (tmp_path / "a.fbx").write_bytes(b"x")
    (found,) = read(tmp_path / "a.fbx")
    assert isinstance(found, SourceReject)
    assert found.code == "missing_dependency"
    assert "pip install pufbx" in found.message
