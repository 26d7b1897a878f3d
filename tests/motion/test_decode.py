"""Decoding: a clip alone is the clip in a batch to the bit, stands on the floor, at any length."""

from __future__ import annotations

import pickle

import pytest
import torch
from motion_clips import make_clip

from hymotion_ray.errors import CheckpointError, SamplingError
from hymotion_ray.motion.body import BodyMesh, skin
from hymotion_ray.motion.decode import Decoder
from hymotion_ray.motion.features import encode_features
from hymotion_ray.motion.ground import joint_floor
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import Skeleton

_GENERATOR = torch.Generator().manual_seed(11)
MEAN = torch.randn(201, generator=_GENERATOR, dtype=torch.float64)
STD = torch.rand(201, generator=_GENERATOR, dtype=torch.float64) + 0.5


def _latent(num_frames: int, skeleton: Skeleton, seed: int = 0) -> torch.Tensor:
    """The latent whose motion wanders smoothly, up to float32 rounding."""
    features = encode_features(*make_clip(num_frames, seed=seed), skeleton)
    return ((features.double() - MEAN) / STD).float()


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("with_mesh", [True, False])
def test_a_clip_in_a_batch_is_the_clip_alone(
    smooth: bool, with_mesh: bool, crooked: Skeleton, mesh: BodyMesh
) -> None:
    decoder = Decoder(MEAN, STD, crooked, mesh if with_mesh else None)
    lengths = [*range(1, 13), 360, 20, 150, 151, 360, 360, 33]
    latents = [_latent(length, crooked, seed=i) for i, length in enumerate(lengths)]
    latents[5] = torch.randn(6, 201, generator=torch.Generator().manual_seed(0))
    together = decoder.decode(latents, smooth=smooth)
    assert [motion.num_frames for motion in together] == lengths
    for latent, motion in zip(latents, together, strict=True):
        (alone,) = decoder.decode([latent], smooth=smooth)
        for name in ("rot6d", "transl", "joints"):
            assert torch.equal(getattr(alone, name), getattr(motion, name)), name
            assert getattr(motion, name).dtype == torch.float32
        assert alone.meta == motion.meta


def test_joints_are_those_of_the_rotations(crooked: Skeleton) -> None:
    (motion,) = Decoder(MEAN, STD, crooked, fps=30).decode([_latent(40, crooked)])
    again = Motion.from_rotations(motion.rot6d, motion.transl, crooked, 30)
    torch.testing.assert_close(motion.joints, again.joints, atol=1e-5, rtol=0)
    assert motion.fps == 30
    assert motion.skeleton is crooked


def test_without_smoothing_the_numbers_stay_the_networks(crooked: Skeleton) -> None:
    rot6d, transl = make_clip(25)
    decoder = Decoder(torch.zeros(201), torch.ones(201), crooked)
    latent = encode_features(1.5 * rot6d, transl, crooked)
    (motion,) = decoder.decode([latent], smooth=False)
    assert torch.equal(motion.rot6d, 1.5 * rot6d)
    assert torch.equal(motion.transl[:, [0, 2]], transl[:, [0, 2]])


def test_clips_stand_on_the_floor(crooked: Skeleton, mesh: BodyMesh) -> None:
    latents = [_latent(40, crooked, seed=1), _latent(9, crooked, seed=2)]
    for motion in Decoder(MEAN, STD, crooked).decode(latents):
        assert motion.meta["ground"] == "joints"
        assert float(joint_floor(motion.joints, crooked)) == pytest.approx(0, abs=2e-6)
    for motion in Decoder(MEAN, STD, crooked, mesh).decode(latents):
        vertices = skin(mesh, crooked, motion.global_rotations(), motion.joints)
        assert motion.meta["ground"] == "mesh"
        assert float(vertices[..., 1].min()) == pytest.approx(0, abs=5e-6)


def test_floor_says_how_far_the_clip_was_lowered(crooked: Skeleton) -> None:
    latent = _latent(30, crooked)
    raised = latent.clone()
    raised[:, 1] += float(2 / STD[1])
    low, high = Decoder(MEAN, STD, crooked).decode([latent, raised])
    assert float(high.meta["floor"]) - float(low.meta["floor"]) == pytest.approx(2, abs=1e-5)
    torch.testing.assert_close(high.joints, low.joints, atol=1e-5, rtol=0)


def test_dimensions_that_never_moved_stay_at_their_mean(crooked: Skeleton) -> None:
    latent, std = _latent(12, crooked), STD.clone()
    std[3:9] = 9e-4
    moved = latent.clone()
    moved[:, 3:9] += 100
    still, wild = Decoder(MEAN, std, crooked).decode([latent, moved], smooth=False)
    assert torch.equal(still.rot6d, wild.rot6d)
    assert torch.equal(still.rot6d[:, 0], MEAN[3:9].float().expand(12, 6))
    std[3:9] = 1.1e-3
    still, wild = Decoder(MEAN, std, crooked).decode([latent, moved], smooth=False)
    assert not torch.equal(still.rot6d, wild.rot6d)


def test_zero_rotations_do_not_become_nan(crooked: Skeleton) -> None:
    decoder = Decoder(torch.zeros(1, 201), torch.ones(1, 201), crooked)
    for smooth in (True, False):
        (motion,) = decoder.decode([torch.zeros(15, 201)], smooth=smooth)
        assert bool(motion.joints.isfinite().all())


def test_bad_latents_are_named_all_at_once(crooked: Skeleton) -> None:
    decoder = Decoder(MEAN, STD, crooked)
    latents = [_latent(20, crooked) for _ in range(4)]
    latents[1][3, 7] = float("nan")
    latents[2] = torch.zeros(20, 200)
    latents[3][0, 0] = float("inf")
    with pytest.raises(SamplingError) as caught:
        decoder.decode(latents, names=["a/s1", "b/s1", "c/s1", "d/s1"])
    for words in ("b/s1 holds NaN", "c/s1 has shape (20, 200)", "d/s1 holds"):
        assert words in str(caught.value)
    assert "a/s1" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(SamplingError, match="clip 1 holds NaN"):
        decoder.decode(latents[:2])


def test_no_clips_give_no_motions(crooked: Skeleton) -> None:
    assert Decoder(MEAN, STD, crooked).decode([]) == []


@pytest.mark.parametrize("bad", [torch.ones(135), torch.full((201,), float("nan"))])
def test_statistics_that_do_not_fit_are_refused(bad: torch.Tensor, crooked: Skeleton) -> None:
    with pytest.raises(CheckpointError, match="201"):
        Decoder(bad, STD, crooked)
    with pytest.raises(CheckpointError, match="201"):
        Decoder(MEAN, bad, crooked)
