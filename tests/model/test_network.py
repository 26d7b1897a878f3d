"""Laws of the network: who influences whom, and that its halves make the whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from hymotion_ray.errors import ConfigError
from hymotion_ray.model import MotionMMDiT

Make = Callable[..., MotionMMDiT]
Inputs = dict[str, Tensor]


def valid(out: Tensor, inputs: Inputs) -> list[Tensor]:
    return [row[:n] for row, n in zip(out, inputs["x_length"].tolist(), strict=True)]


@torch.no_grad()
@pytest.mark.parametrize(
    ("mask_mode", "start", "skip", "single_rope"),
    list(product(("narrowband", "causal", "none"), *[(False, True)] * 3)),
)
def test_padding_changes_nothing(
    make_network: Make,
    inputs: Inputs,
    mask_mode: str,
    start: bool,
    skip: bool,
    single_rope: bool,
) -> None:
    network = make_network(
        mask_mode=mask_mode,
        insert_start_token=start,
        with_long_skip_connection=skip,
        apply_rope_to_single_branch=single_rope,
    )
    out = valid(network(**inputs), inputs)
    for i, row in enumerate(out):
        frames, tokens = int(inputs["x_length"][i]), int(inputs["context_length"][i])
        one = {key: value[i : i + 1] for key, value in inputs.items()}
        one["x"], one["context"] = one["x"][:, :frames], one["context"][:, :tokens]
        torch.testing.assert_close(network(**one)[0], row, rtol=1e-5, atol=1e-5)

    for i in range(3):
        inputs["x"][i, int(inputs["x_length"][i]) :] = torch.nan
        inputs["context"][i, int(inputs["context_length"][i]) :] = torch.inf
    assert all(map(torch.equal, valid(network(**inputs), inputs), out))


@torch.no_grad()
@pytest.mark.parametrize("start", [False, True])
def test_each_mask_mode_shows_what_it_says(make_network: Make, inputs: Inputs, start: bool) -> None:
    """Which frames change when one does, with the gates of all blocks but the first shut."""
    expected = {
        "narrowband": lambda i: abs(i - 15) <= 6,
        "causal": lambda i: i >= 15,
        "none": lambda i: True,
    }
    inputs["x_length"][:] = 30
    changed = dict(inputs, x=inputs["x"].clone())
    changed["x"][:, 15] += 1.0
    for mode, sees in expected.items():
        network = make_network(num_layers=3, mask_mode=mode, insert_start_token=start)
        for block in network.single_blocks:
            block.modulation.linear.weight.zero_()
            block.modulation.linear.bias.zero_()
        differs = (network(**inputs) != network(**changed)).any(-1).all(0)
        assert [i for i in range(30) if differs[i]] == [i for i in range(30) if sees(i)]


@torch.no_grad()
def test_text_stands_at_the_same_place_whatever_the_clip_length(make_network: Make) -> None:
    """With rotary positions over the whole sequence, text keys do not depend on the motion."""
    for start in (False, True):
        whole = make_network(insert_start_token=start, apply_rope_to_single_branch=False)
        alone = make_network(insert_start_token=start, apply_rope_to_single_branch=True)
        arguments = (torch.randn(2, 5, 20), torch.randn(2, 1, 12), torch.rand(2))
        length = torch.tensor([5, 2])
        turned = whole.text_stream(*arguments, length).keys[:, 0, :, 0, :2]
        plain = alone.text_stream(*arguments, length).keys[:, 0, :, 0, :2]
        angle = torch.arange(40 + start, 45 + start).float()
        cos, sin = angle.cos(), angle.sin()
        want = torch.stack(
            (
                plain[..., 0] * cos - plain[..., 1] * sin,
                plain[..., 0] * sin + plain[..., 1] * cos,
            ),
            -1,
        )
        torch.testing.assert_close(turned, want, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_halves_make_the_whole(make_network: Make, inputs: Inputs) -> None:
    network = make_network(with_long_skip_connection=True)
    text = network.text_stream(*(inputs[k] for k in ("context", "vector", "t", "context_length")))
    layout = network.motion_layout(inputs["x_length"], inputs["context_length"], 30, 8)
    halves = network.motion_stream(inputs["x"], text, layout)
    assert all(map(torch.equal, valid(halves, inputs), valid(network(**inputs), inputs)))
    assert text.num_bytes == 3 * network.text_row_bytes(8)
    empty = network.empty_text_rows(3, 8)
    assert [t.shape for t in vars(empty).values()] == [t.shape for t in vars(text).values()]


@torch.no_grad()
@pytest.mark.parametrize("single_rope", [False, True])
def test_one_token_speaks_for_many_equal_ones(make_network: Make, single_rope: bool) -> None:
    network = make_network(apply_rope_to_single_branch=single_rope, insert_start_token=True)
    token, vector, t = torch.randn(1, 1, 20), torch.randn(1, 1, 12), torch.tensor([0.3])
    one = network.text_stream(token, vector, t, torch.tensor([1]))
    repeated = network.repeat_token(one, 8)
    for length in (1, 5, 8):
        whole = network.text_stream(token.expand(1, 8, 20), vector, t, torch.tensor([length]))
        for got, want in zip(
            (repeated.keys[:, :, :length], repeated.values[:, :, :length], repeated.modulation),
            (whole.keys[:, :, :length], whole.values[:, :, :length], whole.modulation),
            strict=True,
        ):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_empty_context_is_finite_and_unseen(make_network: Make, inputs: Inputs) -> None:
    network = make_network()
    inputs["context_length"][:] = 0
    out = network(**inputs)
    assert torch.isfinite(out).all()
    inputs["context"] = torch.randn_like(inputs["context"])
    assert torch.equal(network(**inputs), out)


def test_too_many_frames_is_an_error(make_network: Make, inputs: Inputs) -> None:
    inputs["x"] = torch.randn(3, 41, 201)
    with pytest.raises(ConfigError, match=r"num_frames is 41; allowed: at most 40"):
        make_network()(**inputs)


@pytest.mark.parametrize("start", [False, True])
def test_every_weight_learns(make_network: Make, inputs: Inputs, start: bool) -> None:
    network = make_network(insert_start_token=start, with_long_skip_connection=True)
    sum(row.square().mean() for row in valid(network(**inputs), inputs)).backward()
    # The last block's text half gives keys and values only, so nothing is lost there either.
    silent = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


@torch.no_grad()
def test_time_factor_scales_time_in_the_adapter_alone(make_network: Make, inputs: Inputs) -> None:
    plain, scaled = make_network(time_factor=1.0), make_network(time_factor=2.0)
    t = inputs["t"]
    assert torch.equal(plain.timestep_encoder(2 * t), scaled.timestep_encoder(t))
    refiners = [n.text_refiner.timestep_encoder(t) for n in (plain, scaled)]
    assert torch.equal(*refiners)


@torch.no_grad()
def test_switches_change_what_they_name(make_network: Make, inputs: Inputs) -> None:
    biased = make_network()
    unbiased = make_network(qkv_bias=False)
    gone = biased.state_dict().keys() - unbiased.state_dict().keys()
    assert {name.split(".", 2)[2] for name in gone} == {"motion_qkv.bias", "text_qkv.bias"}
    assert torch.isfinite(unbiased(**inputs)).all()
    assert len(make_network(refiner_num_layers=3).text_refiner.individual_token_refiner.blocks) == 3
    wide = make_network(mlp_ratio=3.0)
    assert wide.single_blocks[0].linear2.weight.shape == (32, 128)
    assert torch.isfinite(wide(**inputs)).all()


@torch.no_grad()
def test_low_precision_is_close(make_network: Make, inputs: Inputs) -> None:
    network = make_network()
    want = torch.cat(valid(network(**inputs), inputs))
    got = torch.cat(valid(network.to(torch.bfloat16)(**inputs), inputs))
    assert got.dtype == torch.bfloat16
    assert (got.float() - want).norm() / want.norm() < 0.05


@torch.inference_mode()
def test_motion_half_reads_nothing_back(make_network: Make, inputs: Inputs) -> None:
    """On the meta device there are shapes and no values, so a step can be captured as it is."""
    network = make_network(insert_start_token=True, with_long_skip_connection=True).to("meta")
    meta = {key: value.to("meta") for key, value in inputs.items()}
    text = network.text_stream(*(meta[k] for k in ("context", "vector", "t", "context_length")))
    layout = network.motion_layout(meta["x_length"], meta["context_length"], 30, 8)
    assert network.motion_stream(meta["x"], text, layout).shape == (3, 30, 201)
    repeated = network.repeat_token(network.empty_text_rows(3, 1), 8)
    assert network.motion_stream(meta["x"], repeated, layout).shape == (3, 30, 201)


def test_motion_half_compiles_to_one_graph(make_network: Make, inputs: Inputs) -> None:
    network = make_network(insert_start_token=True)
    text = network.text_stream(*(inputs[k] for k in ("context", "vector", "t", "context_length")))
    layout = network.motion_layout(inputs["x_length"], inputs["context_length"], 30, 8)
    compiled = torch.compile(network.motion_stream, backend="eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(inputs["x"], text, layout), network.motion_stream(inputs["x"], text, layout)
    )
