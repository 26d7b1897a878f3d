"""The language model runs where and how it is asked to, on every path."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from tiny_models import save_qwen3

from hymotion_ray.config import TextConfig
from hymotion_ray.config.text import TextPlacement
from hymotion_ray.errors import ConfigError, MissingDependencyError, TextEncoderError
from hymotion_ray.text.int8 import Int8Linear
from hymotion_ray.text.load import load_encoder

TEXTS = ["a person walks forward", "jump", "he sits. " * 9]
has_bitsandbytes = importlib.util.find_spec("bitsandbytes") is not None


def load(qwen3, clip, placement):
    config = TextConfig(llm_path=str(qwen3), clip_path=str(clip))
    return load_encoder(config, "unused", placement=placement)


@pytest.fixture(scope="module")
def reference(qwen3, clip):
    return load(qwen3, clip, TextPlacement()).encode(TEXTS)


def test_everything_is_on_the_device_asked_for(qwen3, clip):
    encoder = load(qwen3, clip, TextPlacement(device="cpu"))
    places = {p.device.type for m in models(encoder) for p in m.parameters()}
    assert places == {"cpu"}
    assert encoder.encode(TEXTS).context.device.type == "cpu"


def models(encoder):
    return encoder._context.model, encoder._vector.model


def test_layers_beyond_the_limit_stay_on_disk_and_change_nothing(qwen3, clip, reference, tmp_path):
    placement = TextPlacement(max_cpu_memory="50KB", offload_folder=str(tmp_path / "layers"))
    encoder = load(qwen3, clip, placement)
    assert {p.device.type for p in encoder._context.model.parameters()} == {"meta"}
    condition = encoder.encode(TEXTS)
    assert torch.equal(condition.context, reference.context)
    assert torch.equal(condition.vector, reference.vector)


def test_precision_is_that_of_the_weights_and_the_context(qwen3, clip, reference):
    encoder = load(qwen3, clip, TextPlacement(precision="bfloat16"))
    assert {p.dtype for p in encoder._context.model.parameters()} == {torch.bfloat16}
    condition = encoder.encode(TEXTS)
    assert condition.context.dtype == torch.bfloat16
    assert condition.vector.dtype == torch.float32
    error = (condition.context.float() - reference.context).norm() / reference.context.norm()
    assert 1e-4 < error < 0.05


def test_dtype_is_short_for_precision(qwen3, clip):
    config = TextConfig(llm_path=str(qwen3), clip_path=str(clip))
    encoder = load_encoder(config, "unused", device="cpu", dtype=torch.bfloat16)
    assert encoder.encode(["jump"]).context.dtype == torch.bfloat16
    with pytest.raises(TextEncoderError, match="float64"):
        load_encoder(config, "unused", dtype=torch.float64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_an_error(qwen3, clip):
    with pytest.raises(TextEncoderError, match="'cuda'"):
        load(qwen3, clip, TextPlacement(device="cuda"))


@pytest.mark.skipif(has_bitsandbytes, reason="bitsandbytes is installed")
def test_4bit_without_bitsandbytes_names_it(qwen3, clip):
    with pytest.raises(MissingDependencyError, match="pip install 'bitsandbytes'"):
        load(qwen3, clip, TextPlacement(precision="4bit"))


def has_4bit(*values):
    return pytest.param(
        *values, marks=pytest.mark.skipif(not has_bitsandbytes, reason="needs bitsandbytes")
    )


@pytest.mark.parametrize(("precision", "bound"), [("int8", 0.05), has_4bit("4bit", 0.6)])
def test_quantised_features_are_near_and_do_not_depend_on_mates(clip, tmp_path, precision, bound):
    folder = save_qwen3(tmp_path / "qwen3", hidden=128, head_dim=64)
    exact = load(folder, clip, TextPlacement()).encode(TEXTS)
    encoder = load(folder, clip, TextPlacement(precision=precision, rows=4))
    got = encoder.encode(TEXTS)
    error = (got.context.float() - exact.context).norm() / exact.context.norm()
    assert 0 < error < bound
    for i, text in enumerate(TEXTS):
        num = int(got.length[i])
        assert torch.equal(encoder.encode([text]).context[0, :num], got.context[i, :num])


def test_not_finite_features_are_an_error(qwen3, clip):
    encoder = load(qwen3, clip, TextPlacement())
    with torch.no_grad():
        encoder._context.model.norm.weight.fill_(float("inf"))
    with pytest.raises(TextEncoderError, match="not finite for text 0"):
        encoder.encode(["jump"])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("device", "gpu"),
        ("max_gpu_memory", "ten"),
        ("max_cpu_memory", "1GiB"),  # without a folder for the rest
        ("rows", 0),
    ],
)
def test_placements_that_cannot_be_are_refused(setting, value):
    with pytest.raises(ConfigError, match="text"):
        TextPlacement(**{setting: value})


def test_int8_weights_take_a_quarter_of_float32_and_are_another_encoder(clip, tmp_path):
    folder = save_qwen3(tmp_path / "qwen3", hidden=128, head_dim=64)
    exact, int8 = (load(folder, clip, TextPlacement(precision=p)) for p in ("auto", "int8"))
    layers = exact._context.model.layers, int8._context.model.layers
    sizes = [sum(t.numel() * t.element_size() for t in m.state_dict().values()) for m in layers]
    assert sizes[1] < 0.27 * sizes[0]
    assert exact.fingerprint != int8.fingerprint
    assert [TextPlacement(precision=p).is_approximate for p in ("auto", "int8")] == [False, True]


def test_int8_with_layers_elsewhere_is_refused(qwen3, clip):
    placement = TextPlacement(precision="int8", max_gpu_memory="1GiB")
    with pytest.raises(TextEncoderError, match="int8 without max_gpu_memory"):
        load(qwen3, clip, placement)


def test_an_output_of_zeros_stays_zeros():
    layer = torch.nn.Linear(8, 3)
    torch.nn.init.zeros_(layer.weight)
    x = torch.randn(2, 8)
    assert torch.equal(Int8Linear(layer)(x), layer(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_bits_do_not_depend_on_mates(qwen3, clip, reference):
    encoder = load(qwen3, clip, TextPlacement(device="cuda", precision="float32"))
    places = {p.device.type for m in models(encoder) for p in m.parameters()}
    assert places == {"cuda"}
    together = encoder.encode(TEXTS)
    assert (together.context.cpu() - reference.context).norm() / reference.context.norm() < 1e-3
    for i, text in enumerate(TEXTS):
        num = int(together.length[i])
        assert torch.equal(encoder.encode([text]).context[0, :num], together.context[i, :num])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_layers_beyond_the_limit_stay_in_cpu_memory(qwen3, clip):
    whole = load(qwen3, clip, TextPlacement(device="cuda", precision="float32"))
    placement = TextPlacement(device="cuda", precision="float32", max_gpu_memory="100KB")
    encoder = load(qwen3, clip, placement)
    places = set(encoder._context.model.hf_device_map.values())
    assert {0, "cpu"} <= places
    assert torch.equal(encoder.encode(TEXTS).context.cuda(), whole.encode(TEXTS).context)
