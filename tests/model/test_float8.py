"""Products in float8: scaled token by token, near the exact ones, refused where nothing has them.

The kernels run in Triton's interpreter and the products in torch's own CPU form of them.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_fused import make_network
from torch import Tensor

import hymotion_ray as hm
from hymotion_ray.config.fields import from_mapping
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.config.serve import PoolConfig
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.float8 import Float8Module, quantize_rows, reference_motion
from hymotion_ray.model.fused.choose import fused_or_plain
from hymotion_ray.model.linear import Linear
from hymotion_ray.model.precision import choose_precision

needs_interpreter = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="a GPU is here: tests/gpu has its tests"
)


def relative(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def test_rows_keep_their_numbers_to_a_sixteenth_and_know_no_others() -> None:
    x = torch.randn(7, 96) * torch.logspace(-6, 6, 7)[:, None]
    x[3] = 0.0
    values, scale = quantize_rows(x)
    back = values.float() * scale
    assert values.float().abs().amax(-1).tolist() == [448.0] * 3 + [0.0] + [448.0] * 3
    large = x.abs() > x.abs().amax(-1, keepdim=True) * 2**-12
    assert ((back - x).abs()[large] <= x.abs()[large] / 16 * 1.0001).all()
    alone = quantize_rows(x[2:3])
    assert torch.equal(alone[0].float(), values[2:3].float())
    assert torch.equal(alone[1], scale[2:3])


def test_a_layer_in_float8_is_near_the_layer() -> None:
    torch.manual_seed(0)
    linear = Linear(64, 48)
    x = torch.randn(2, 5, 64)
    with torch.inference_mode():
        assert 1e-3 < relative(Float8Module(linear)(x), linear(x)) < 0.05


@needs_interpreter
def test_the_kernel_scales_as_plain_torch_does() -> None:
    from hymotion_ray.model.fused.quantize import quantized

    torch.manual_seed(0)
    both = torch.randn(2, 3, 96)
    plain, hidden = torch.randn(2, 3, 32), both[..., 32:]
    gelu = F.gelu(hidden, approximate="tanh")
    cases = [
        (plain, None, plain), (None, hidden, gelu), (plain, hidden, torch.cat((plain, gelu), -1)),
    ]  # fmt: skip
    for first, second, joined in cases:
        values, scale = quantized(first, second)
        want, want_scale = quantize_rows(joined.flatten(0, 1))
        torch.testing.assert_close(scale, want_scale)
        # Triton's interpreter (3.7) drops the carry where rounding reaches the next power of two,
        # and halves such numbers; hardware does not (tests/gpu).
        is_power = torch.frexp(want.float()).mantissa.abs() == 0.5
        assert torch.equal(values.float()[~is_power], want.float()[~is_power])
        assert float(is_power.float().mean()) < 0.3


def quantized_by_torch(plain: Tensor | None, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the kernel says on hardware; see above for what the interpreter makes of it."""
    gelu = None if hidden is None else F.gelu(hidden, approximate="tanh")
    joined = torch.cat([part for part in (plain, gelu) if part is not None], dim=-1)
    return quantize_rows(joined.flatten(0, 1))


@needs_interpreter
@torch.inference_mode()
def test_the_fused_network_in_float8_is_the_plain_one_in_float8(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hymotion_ray.model.fused import products
    from hymotion_ray.model.fused.network import FusedMMDiT
    from hymotion_ray.model.fused.rows import FusedRows

    monkeypatch.setattr(products, "quantized", quantized_by_torch)
    network, generator = make_network(), torch.Generator().manual_seed(1)
    context = torch.randn(2, 5, 32, generator=generator)
    vector, t = torch.randn(2, 1, 16, generator=generator), torch.rand(2, generator=generator)
    x = torch.randn(2, 9, 201, generator=generator)
    tokens, frames, index = torch.tensor([5, 2]), torch.tensor([9, 5]), torch.tensor([1, 0])
    stream = network.text_stream(context, vector, t, tokens)
    text, layout = stream.pick(index), network.motion_layout(frames, tokens[index], 9, 5)
    exact = network.motion_stream(x, text, layout)
    plain = reference_motion(network).motion_stream(x, text, layout)
    fused = FusedMMDiT(network, float8=True)
    rows, own = FusedRows(stream, index), fused.motion_layout(frames, tokens[index], 9, 5)
    got = fused.motion_stream(x, rows, own)
    for i, n in enumerate(frames.tolist()):
        error = relative(plain[i, :n], exact[i, :n])
        assert 1e-3 < error < 0.1
        # Products are rounded to eight bits: what differs by a last bit before may differ after.
        assert relative(got[i, :n], plain[i, :n]) < error / 4
    mates = x.clone()
    mates[1] = 100 * torch.randn(9, 201)
    assert torch.equal(fused.motion_stream(mates, rows, own)[0], got[0])
    again = copy.deepcopy(fused).to(torch.float32)
    assert isinstance(again, MotionMMDiT)
    assert torch.equal(again.motion_stream(x, text, layout), exact)


@pytest.mark.parametrize(
    ("device", "capability", "found"),
    [
        ("cpu", None, "a cpu device"),
        ("mps", None, "a mps device"),
        ("cuda", (7, 5), "capability 7.5"),
        ("cuda", (8, 6), "capability 8.6"),
    ],
)
def test_hardware_without_it_is_named(
    device: str, capability: tuple[int, int] | None, found: str
) -> None:
    with pytest.raises(ConfigError, match=rf"'float8' on .*{found}; allowed on cards from 8\.9"):
        choose_precision("float8", device, capability)


def test_hardware_that_has_it_keeps_bfloat16_around_it_and_takes_it_only_when_asked() -> None:
    for capability in ((8, 9), (9, 0), (10, 0)):
        choice = choose_precision("float8", "cuda", capability)
        assert (choice.name, choice.dtype) == ("float8", torch.bfloat16)
        assert choose_precision("auto", "cuda", capability).name == "bfloat16"


def test_what_has_no_such_products_refuses(random_model: Path) -> None:
    with pytest.raises(ConfigError, match="'float8', but the kernels are for CUDA devices"):
        fused_or_plain(make_network(), float8=True)
    with pytest.raises(ConfigError, match="'float8' on a cpu device"):
        hm.load_model(str(random_model), dtype="float8")
    job = {"prompts": ("p",), "model": "m", "out": "o", "precision": "float8"}
    RenderConfig(**job)  # type: ignore[arg-type]
    for way in ({"offload": "layers"}, {"split": SplitConfig.parse("heads:2")}):
        with pytest.raises(ConfigError, match="float8 without split and offload"):
            RenderConfig(**job, **way)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"precision is 'float8'; allowed: auto \| float32"):
        from_mapping(PoolConfig, {"precision": "float8"}, "pool")
