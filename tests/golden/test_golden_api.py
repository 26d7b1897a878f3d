"""The golden vectors through the public API, from every form a model has on disk.

The bounds are those of docs/reproducibility.md and never move.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.signal import savgol_filter

import hymotion_ray as hm
from hymotion_ray.formats.models.release import export_release, import_release

GOLDEN = Path(__file__).parent
CASES = sorted(p.parent.name for p in GOLDEN.glob("*/latest.ckpt"))
FORMS = ("release", "converted", "exported")
NETWORK, LATENT, ROT6D, TRANSL, JOINTS = 1e-6, 3e-6, 1e-6, 3e-5, 1e-5


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert got.shape == expected.shape
    assert got.dtype == torch.float32
    difference = (got.double() - expected.double()).norm()
    return float(difference / expected.double().norm())


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """The case's folder in each form, and what the reference computed."""
    released = GOLDEN / request.param
    made = tmp_path_factory.mktemp("forms")
    import_release(released, made / "converted")
    export_release(made / "converted", made / "exported")
    folders = {"release": released, "converted": made / "converted", "exported": made / "exported"}
    return folders, load_file(released / "expected.safetensors")


@pytest.fixture(params=FORMS)
def model_and_expected(request: pytest.FixtureRequest, case):
    folders, expected = case
    return hm.load_model(folders[request.param]), expected


def test_one_fingerprint_in_every_form(case) -> None:
    folders, _ = case
    assert len({hm.load_model(folder).fingerprint for folder in folders.values()}) == 1


def test_velocity(model_and_expected) -> None:
    model, expected = model_and_expected
    names = ("x", "ctxt", "vtxt", "t", "x_length", "ctxt_length")
    velocity = model.velocity(*(expected[f"net.{name}"] for name in names))
    assert relative(velocity, expected["net.out"]) < NETWORK


def test_sample_with_the_models_own_settings(model_and_expected) -> None:
    model, expected = model_and_expected
    condition = hm.TextCondition(
        context=expected["net.ctxt"],
        vector=expected["net.vtxt"],
        length=expected["net.ctxt_length"],
    )
    num_frames = expected["sample.latent"].shape[1]
    rows = [
        hm.Row(prompt=i, num_frames=num_frames, seed=seed)
        for i, seed in enumerate(expected["sample.seeds"].tolist())
    ]
    latents = torch.stack(model.sample(condition, rows))
    assert relative(latents, expected["sample.latent"]) < LATENT


@pytest.mark.parametrize(("name", "smooth"), [("decode", True), ("decode_raw", False)])
def test_decode(model_and_expected, name: str, smooth: bool) -> None:
    """`keypoints3d` is joints without translation, lowered by the height that the clip was lowered.

    That height is the translation before the ground step (the reference's own denormalised latent,
    smoothed as its page says) minus the one after it. Our joints are world positions, so ours minus
    our translation, lowered by it, must be theirs. The height is taken where no end is near: the
    reference fits the ends in float32, which leaves 0.1 mm to the processor's linear algebra.
    """
    model, expected = model_and_expected
    motions = model.decode(list(expected["sample.latent"]), smooth=smooth)
    rot6d, transl, joints = (
        torch.stack([getattr(m, part) for m in motions]) for part in ("rot6d", "transl", "joints")
    )
    assert relative(rot6d, expected[f"{name}.rot6d"]) < ROT6D
    assert relative(transl, expected[f"{name}.transl"]) < TRANSL
    before = expected["decode.latent_denorm"][..., :3].numpy()
    if smooth:
        before = savgol_filter(before, 11, 5, axis=1)
    lowered = (before[..., 1] - expected[f"{name}.transl"][..., 1].numpy())[:, 5:-5]
    assert np.ptp(lowered, axis=1).max() < 1e-4, "one height a clip"
    posed = joints - transl[:, :, None]
    posed[..., 1] -= torch.from_numpy(lowered.mean(axis=1))[:, None, None]
    assert relative(posed, expected[f"{name}.keypoints3d"]) < JOINTS


def test_one_latent_decodes_as_in_the_list(model_and_expected) -> None:
    model, expected = model_and_expected
    together = model.decode(list(expected["sample.latent"]))
    alone = model.decode(expected["sample.latent"][1])
    assert torch.equal(alone.joints, together[1].joints)
    assert torch.equal(alone.rot6d, together[1].rot6d)
