"""The ray-free façade: what it loads, what it refuses, and that it adds nothing of its own."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import hymotion_ray as hm
from hymotion_ray import api
from hymotion_ray.config import Grid, SamplingConfig
from hymotion_ray.errors import CheckpointError, ConfigError, SamplingError, TextEncoderError
from hymotion_ray.formats.models.checkpoint import read_model, write_model
from hymotion_ray.motion.skeleton import generic_skeleton

GOLDEN = Path(__file__).parent.parent / "golden"
RELEASE = GOLDEN / "release_like"
TINY_TEXT = Path(api.__file__).parent / "assets" / "tiny" / "text"
HAS_TINY = (TINY_TEXT.parent / "config.json").exists()


@pytest.fixture(scope="module")
def model() -> hm.Model:
    return hm.load_model(RELEASE)


@pytest.fixture(scope="module")
def condition() -> hm.TextCondition:
    generator = torch.Generator().manual_seed(0)
    return hm.TextCondition(
        context=torch.randn(2, 6, 32, generator=generator),
        vector=torch.randn(2, 1, 24, generator=generator),
        length=torch.tensor([6, 3]),
    )


def test_importing_the_package_loads_neither_torch_nor_ray() -> None:
    code = (
        "import sys, hymotion_ray as hm\n"
        "assert not {'torch', 'ray', 'numpy'} & set(sys.modules)\n"
        "assert set(hm.__all__) <= set(dir(hm)) and hm.__version__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_has_its_home() -> None:
    for name in hm.__all__:
        assert getattr(hm, name) is not None
    for name in api.__all__:
        if name != "model_folder":
            assert getattr(hm, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hm.nothing


def test_properties(model: hm.Model) -> None:
    assert model.config.train_frames == 60
    assert model.fingerprint == read_model(RELEASE).fingerprint
    assert (str(model.device), model.precision) == ("cpu", "float32")
    assert model.skeleton.same_as(model.checkpoint.skeleton)
    assert model.decoder is model.decoder
    assert model.sampler is model.sampler
    assert model.new_sampler(Grid(rows=2)).grid.rows == 2


def test_weights_are_the_files_and_do_not_lie_in_it(model: hm.Model) -> None:
    for name, parameter in model.network.named_parameters():
        stored = model.checkpoint.network[name]
        assert torch.equal(parameter, stored)
        assert parameter.data_ptr() != stored.data_ptr()
        assert not parameter.requires_grad


def test_sampling_settings_fall_back_to_the_models_own(
    model: hm.Model, condition: hm.TextCondition
) -> None:
    rows = [hm.Row(prompt=1, num_frames=30, seed=3), hm.Row(prompt=0, num_frames=21, seed=3)]
    own = model.sample(condition, rows)
    spelled = model.sample(condition, rows, num_steps=6, guidance_scale=5.0, method="euler")
    assert [tuple(latent.shape) for latent in own] == [(30, 201), (21, 201)]
    assert all(torch.equal(a, b) for a, b in zip(own, spelled, strict=True))
    direct = model.new_sampler().sample(
        condition.context, condition.vector, condition.length, rows, SamplingConfig(num_steps=3)
    )
    fewer = model.sample(condition, rows, num_steps=3)
    assert all(torch.equal(a, b) for a, b in zip(fewer, direct, strict=True))
    assert not torch.equal(own[0], fewer[0])
    calls: list[tuple[int, int]] = []
    model.sample(condition, rows[:1], num_steps=2, on_step=lambda *step: calls.append(step))
    assert calls == [(1, 2), (2, 2)]


def test_sampling_outside_the_limits(model: hm.Model, condition: hm.TextCondition) -> None:
    row = hm.Row(prompt=0, num_frames=30, seed=0)
    with pytest.raises(ConfigError, match="num_steps is 0; allowed: 1 to 1000"):
        model.sample(condition, [row], num_steps=0)
    with pytest.raises(ConfigError, match="method is 'heun'"):
        model.sample(condition, [row], method="heun")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="61 frames; allowed: 1 to 60"):
        model.sample(condition, [dataclasses.replace(row, num_frames=61)])


def test_velocity_ignores_and_clears_padding(model: hm.Model, condition: hm.TextCondition) -> None:
    x = torch.randn(2, 40, 201, generator=torch.Generator().manual_seed(1))
    rest = (condition.context, condition.vector, torch.tensor([0.2, 0.9]))
    lengths = torch.tensor([40, 25])
    v = model.velocity(x, *rest, lengths, condition.length)
    assert v.shape == (2, 40, 201)
    assert bool((v[1, 25:] == 0).all())
    x[1, 25:] = float("nan")
    again = model.velocity(x, *rest, [40, 25], [6, 3])
    assert torch.equal(v, again)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"x": torch.zeros(2, 40, 200)}, r"x has shape \(2, 40, 200\)"),
        ({"context": torch.zeros(2, 6, 31)}, r"context has shape \(2, 6, 31\); .* 32"),
        ({"vector": torch.zeros(2, 24)}, r"vector has shape \(2, 24\)"),
        ({"t": torch.tensor(0.5)}, r"t has shape \(\)"),
        ({"x_length": [40, 41]}, "x_length runs from 40 to 41; allowed: 0 to 40"),
        ({"context_length": [7, 1]}, "context_length runs from 1 to 7; allowed: 0 to 6"),
        ({"x": torch.zeros(2, 61, 201)}, "num_frames is 61; allowed: at most 60"),
    ],
)
def test_velocity_refuses_what_does_not_fit(
    model: hm.Model, condition: hm.TextCondition, change: dict[str, object], match: str
) -> None:
    inputs = {
        "x": torch.zeros(2, 40, 201),
        "context": condition.context,
        "vector": condition.vector,
        "t": torch.tensor([0.2, 0.9]),
        "x_length": [40, 25],
        "context_length": [6, 3],
    }
    with pytest.raises(ConfigError, match=match):
        model.velocity(**(inputs | change))  # type: ignore[arg-type]


def test_decoded_motions_say_where_they_come_from(model: hm.Model) -> None:
    latent = torch.randn(24, 201, generator=torch.Generator().manual_seed(2))
    motion = model.decode(latent)
    assert motion.meta["model"] == model.config.name
    assert motion.meta["licence"] == model.config.licence
    assert (motion.num_frames, motion.fps) == (24, 30)
    pelvis = motion.transl + torch.from_numpy(motion.skeleton.rest[0].copy())
    assert torch.allclose(motion.joints[:, 0], pelvis, atol=1e-6)
    batch = model.decode(torch.stack([latent, latent]))
    assert isinstance(batch, list)
    assert torch.equal(batch[1].joints, motion.joints)
    assert model.decode([]) == []
    with pytest.raises(SamplingError, match="NaN"):
        model.decode(latent * float("nan"))


def test_a_model_without_a_body_stands_on_the_generic_one(tmp_path: Path) -> None:
    for name in ("config.yml", "latest.ckpt"):
        shutil.copy(RELEASE / name, tmp_path)
    model = hm.load_model(tmp_path)
    assert model.skeleton.same_as(generic_skeleton())
    assert model.decode(torch.zeros(12, 201)).meta["ground"] == "joints"


def test_half_precision_on_request(condition: hm.TextCondition) -> None:
    half = hm.load_model(RELEASE, dtype="bfloat16")
    assert half.precision == "bfloat16"
    assert hm.load_model(RELEASE, dtype="auto").precision == "float32"
    rows = [hm.Row(prompt=0, num_frames=30, seed=0)]
    full = hm.load_model(RELEASE).sample(condition, rows)[0]
    rough = half.sample(condition, rows)[0]
    assert rough.dtype == torch.float32
    assert 0 < float((rough - full).norm() / full.norm()) < 0.05


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"device": "nowhere"}, "device is 'nowhere'; allowed: cpu, cuda"),
        ({"device": "cuda:99"}, "torch sees .* CUDA devices"),
        ({"dtype": "int4"}, "dtype is 'int4'; allowed: auto, float32"),
    ],
)
def test_unknown_device_and_dtype(arguments: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        hm.load_model(RELEASE, **arguments)


@pytest.mark.parametrize("name", ["lite", "no/such/folder"])
def test_unknown_models(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"no model '{name}'.*built-in models are tiny"):
        hm.load_model(name)


def test_texts_need_an_encoder(model: hm.Model) -> None:
    with pytest.raises(TextEncoderError, match="Qwen3"):
        model.encode(["a person walks"])


@pytest.mark.skipif(not TINY_TEXT.exists(), reason="the built-in word vectors are not there")
def test_encoding_with_the_models_own_words(tmp_path: Path) -> None:
    held = read_model(RELEASE)
    text = dataclasses.replace(held.config.text, kind="static")
    config = dataclasses.replace(held.config, text=text)
    write_model(dataclasses.replace(held, config=config), tmp_path / "model")
    shutil.copytree(TINY_TEXT, tmp_path / "model" / "text")
    model = hm.load_model(tmp_path / "model")
    with pytest.raises(TextEncoderError, match="but the network takes 32"):
        model.encode("a person walks")


@pytest.mark.skipif(not HAS_TINY, reason="the built-in model is not there")
def test_tiny_from_words_to_motion() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny = hm.load_model("tiny")
    condition = tiny.encode(["a person walks forward", "a person jumps"])
    assert len(tiny.encode("a person waves")) == 1
    rows = [hm.Row(prompt=0, num_frames=40, seed=7), hm.Row(prompt=1, num_frames=20, seed=7)]
    motions = tiny.decode(tiny.sample(condition, rows, num_steps=4))
    assert [m.num_frames for m in motions] == [40, 20]
    assert all(bool(m.joints.isfinite().all()) for m in motions)


@pytest.mark.skipif(HAS_TINY, reason="the built-in model is there")
def test_tiny_that_is_not_installed_says_so() -> None:
    with pytest.raises(CheckpointError, match="built-in model 'tiny' is not part of this"):
        hm.load_model("tiny")
