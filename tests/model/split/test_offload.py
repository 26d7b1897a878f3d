"""Weights that wait in host memory give the same bits, and the device holds two blocks of them."""

from __future__ import annotations

import copy

import pytest
import torch
from split_process import make_network, num_bytes, sample

from hymotion_ray.config.releases import released_network
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.offload import LayerOffload


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits_as_the_resident_network(dtype: torch.dtype) -> None:
    whole = make_network().to(dtype)
    offloaded = LayerOffload(copy.deepcopy(whole), "cpu")
    expected = sample(whole)
    for call in range(2):  # the second one begins with what the first one left behind
        for one, two in zip(expected, sample(offloaded), strict=True):
            assert torch.equal(one, two), call


def test_a_second_try_in_float32_has_the_same_weights() -> None:
    whole = make_network().to(torch.bfloat16)
    offloaded = LayerOffload(copy.deepcopy(whole), "cpu")
    sample(offloaded)
    again = copy.deepcopy(offloaded).to(torch.float32)
    assert (again.dtype, offloaded.dtype) == (torch.float32, torch.bfloat16)
    weights = whole.to(torch.float32).state_dict()
    assert {n: torch.equal(w, weights[n]) for n, w in again.whole().state_dict().items()} == (
        dict.fromkeys(weights, True)
    )
    for one, two in zip(sample(whole), sample(again), strict=True):
        assert torch.equal(one, two)


def test_two_blocks_at_most_are_resident() -> None:
    network = make_network()
    sizes = [num_bytes(block) for block in network.blocks]
    rest = num_bytes(network) - sum(sizes)
    alignment = 512 * sum(1 for _ in network.blocks[0].parameters())
    offloaded = LayerOffload(network, "cpu")
    for _ in range(2):
        assert offloaded.resident_bytes <= rest + 2 * (max(sizes) + alignment)
        sample(offloaded)


@pytest.mark.parametrize(("name", "most_gib"), [("1.0", 0.5), ("lite", 0.31)])
def test_what_the_released_networks_keep_on_a_card(name: str, most_gib: float) -> None:
    """Two of the largest blocks and the rest, in 2-byte weights, of 1.94 and 0.86 GiB."""
    with torch.device("meta"):
        network = MotionMMDiT(released_network(name), 360)
    sizes = [num_bytes(block) for block in network.blocks]
    rest = num_bytes(network) - sum(sizes)
    assert (rest + 2 * max(sizes)) / 2 < most_gib * 2**30
