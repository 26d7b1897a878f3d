"""Embeddings, rotary positions, initial weights, operation counts and precision by device."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hymotion_ray.errors import ConfigError
from hymotion_ray.model import MotionMMDiT, choose_precision, initialise, set_precision
from hymotion_ray.model.embeddings import sinusoid
from hymotion_ray.model.rope import rope_table, rotate
from hymotion_ray.planning.flops import motion_flops, text_flops

Make = Callable[..., MotionMMDiT]


def test_sinusoid_is_cosines_then_sines() -> None:
    wave = sinusoid(torch.tensor([0.25]), 6, 1000.0)[0]
    angles = [250.0 * 10000 ** (-i / 3) for i in range(3)]
    want = torch.tensor([*map(math.cos, angles), *map(math.sin, angles)])
    torch.testing.assert_close(wave, want, rtol=1e-4, atol=1e-5)


def test_rotation_turns_adjacent_pairs_and_keeps_scores_relative() -> None:
    x = torch.randn(1, 3, 2, 8)
    turned = rotate(x, rope_table(torch.tensor([0, 1, 5]), 8))
    assert torch.equal(turned[:, 0], x[:, 0])
    angle = 5 * 10000 ** (-2 / 8)
    a, b = x[0, 2, 1, 2:4].tolist()
    want = [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
    torch.testing.assert_close(turned[0, 2, 1, 2:4], torch.tensor(want))
    q, k = torch.randn(2, 8)

    def score(i: int, j: int) -> float:
        at = rope_table(torch.tensor([i, j]), 8)
        turned_q, turned_k = rotate(torch.stack((q, k))[None, :, None], at)[0, :, 0]
        return float(turned_q @ turned_k)

    assert score(3, 7) == pytest.approx(score(103, 107), abs=1e-4)


def test_rotation_has_one_result_on_every_device() -> None:
    """The complex product that CPU takes, against the real one that accelerators take."""
    x, table = torch.randn(2, 5, 3, 8), rope_table(torch.arange(5), 8)
    cos, sin = table
    even, odd = x[..., 0::2], x[..., 1::2]
    real = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    torch.testing.assert_close(rotate(x, table), real)


def test_initial_network_predicts_zero_and_can_learn(make_network: Make) -> None:
    first, second, other = (make_network(insert_start_token=True) for _ in range(3))
    initialise(first, seed=3)
    initialise(second, seed=3)
    initialise(other, seed=4)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not all(map(torch.equal, first.parameters(), other.parameters()))
    length = torch.tensor([9]), torch.tensor([4])
    out = first(
        torch.randn(1, 9, 201), torch.randn(1, 4, 20), torch.randn(1, 1, 12), torch.rand(1), *length
    )
    assert not out.any()
    (out - 1).square().mean().backward()
    assert first.final_layer.linear.weight.grad.any()


@pytest.mark.parametrize("switch", [False, True])
def test_operation_counts_equal_what_torch_counts(make_network: Make, switch: bool) -> None:
    network = make_network(insert_start_token=switch, with_long_skip_connection=switch)
    length = torch.tensor([8, 3, 2])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        text = network.text_stream(
            torch.randn(3, 8, 20), torch.randn(3, 1, 12), torch.rand(3), length
        )
    assert counted.get_total_flops() == text_flops(network.config, 3, 8)
    layout = network.motion_layout(length, length, 30, 8)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        network.motion_stream(torch.randn(3, 30, 201), text, layout)
    assert counted.get_total_flops() == motion_flops(network.config, 3, 30, 8)


@pytest.mark.parametrize(
    ("requested", "device", "capability", "name", "reason"),
    [
        ("auto", "cpu", None, "float32", "cpu"),
        ("auto", "cuda", (9, 0), "bfloat16", "9.0 has bfloat16"),
        ("auto", "cuda", (8, 0), "bfloat16", "8.0 has bfloat16"),
        ("auto", "cuda", (7, 5), "float16", "sums stay in float32"),
        ("auto", "cuda", (7, 0), "float16", "sums stay in float32"),
        ("auto", "cuda", (6, 1), "float32", "no matrix units"),
        ("float32", "cuda", (9, 0), "float32", "asked"),
        ("float16", "cuda", (8, 6), "float16", "asked"),
        ("bfloat16", "cpu", None, "bfloat16", "asked"),
        ("float16", "cpu", None, "float16", "asked"),
    ],
)
def test_precision_by_device(
    requested: str, device: str, capability: tuple[int, int] | None, name: str, reason: str
) -> None:
    choice = choose_precision(requested, device, capability)
    assert choice.name == name
    assert reason in choice.reason
    assert choice.dtype == getattr(torch, name)


def test_precision_that_a_device_lacks_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'bfloat16' on a card of compute capability 7\.5"):
        choose_precision("bfloat16", "cuda", (7, 5))


def test_set_precision_changes_weights_and_forbids_float16_sums(make_network: Make) -> None:
    network = make_network()
    set_precision(network, choose_precision("auto", "cuda", (7, 5)))
    assert network.dtype == torch.float16
    assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
