"""Decoding against the reference's own numbers. Neither they nor the bounds are ever edited."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.decode import Decoder
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.poses import poses_of, relaxed_hands
from hymotion_ray.motion.skeleton import Skeleton

CASES = sorted(path.parent.name for path in Path(__file__).parent.glob("*/expected.safetensors"))


@cache
def _decoder(case: str) -> Decoder:
    folder = Path(__file__).parent / case
    body = folder / "body"
    skeleton = Skeleton(np.fromfile(body / "j_template.bin", "<f4").reshape(52, 3))
    mesh = BodyMesh(
        vertices=np.fromfile(body / "v_template.bin", "<f4").reshape(-1, 3),
        skin_weights=np.fromfile(body / "skinWeights.bin", "<f4").reshape(-1, 4),
        skin_indices=np.fromfile(body / "skinIndice.bin", "<u2").reshape(-1, 4),
        faces=np.fromfile(body / "faces.bin", "<u2").reshape(-1, 3),
    )
    mean, std = (np.load(folder / "stats" / f"{name}.npy") for name in ("Mean", "Std"))
    return Decoder(torch.from_numpy(mean), torch.from_numpy(std), skeleton, mesh)


@cache
def _expected(case: str) -> dict[str, Tensor]:
    return load_file(Path(__file__).parent / case / "expected.safetensors")


@cache
def _motions(case: str, smooth: bool) -> list[Motion]:
    return _decoder(case).decode(list(_expected(case)["sample.latent"]), smooth=smooth)


def _distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def test_there_are_four_cases() -> None:
    assert len(CASES) == 4


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("kind", "smooth"), [("decode", True), ("decode_raw", False)])
def test_motions_are_the_reference(case: str, kind: str, smooth: bool) -> None:
    expected = _expected(case)
    for row, motion in enumerate(_motions(case, smooth)):
        assert _distance(motion.rot6d, expected[f"{kind}.rot6d"][row]) <= 1e-6
        assert _distance(motion.transl, expected[f"{kind}.transl"][row]) <= 3e-5
        # The reference's key points leave the translation out, yet are lowered to the floor.
        lowered = torch.tensor([0, float(motion.meta["floor"]), 0])
        points = motion.joints - motion.transl[:, None] - lowered
        assert _distance(points, expected[f"{kind}.keypoints3d"][row]) <= 1e-5


@pytest.mark.parametrize("case", CASES)
def test_root_rotations_are_the_reference(case: str) -> None:
    for motion, expected in zip(
        _motions(case, True), _expected(case)["decode.root_rotmat"], strict=True
    ):
        assert _distance(motion.local_rotations()[:, 0], expected) <= 1e-6


@pytest.mark.parametrize("case", CASES)
def test_poses_of_the_saved_npz_are_the_reference(case: str) -> None:
    expected, motion = _expected(case), _motions(case, True)[0]
    poses = torch.from_numpy(poses_of(motion, relaxed_hands()))
    assert _distance(poses, expected["npz.poses"]) <= 1e-6
    assert torch.equal(poses[:, 66:], expected["npz.poses"][:, 66:])
    assert _distance(poses[:, :3], expected["npz.Rh"]) <= 1e-6
    assert _distance(motion.transl, expected["npz.trans"]) <= 3e-5
