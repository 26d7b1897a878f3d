"""The fused kernels say what the plain network says: here in Triton's interpreter, on the CPU.

The interpreter runs the kernels' own code on tensors of the CPU. What only a GPU shows (speed,
rounding in bfloat16, graphs) is in tests/gpu.
"""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

from hymotion_ray.config.releases import released_network
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.fused.choose import fused_or_plain, why_plain

pytest.importorskip("triton", reason="Triton comes with torch's builds for GPUs")

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="a GPU is here: tests/gpu has its tests"
)

LENGTHS = (33, 20, 3, 33)
TOKENS = (5, 2, 1)
INDEX = (2, 0, 1, 0)


def make_network(**changes: object) -> MotionMMDiT:
    small = dataclasses.replace(
        released_network("1.0"), feat_dim=128, num_heads=2, num_layers=3, ctxt_input_dim=32,
        vtxt_input_dim=16, narrowband_length=0.3, refiner_num_layers=1,
    )  # fmt: skip
    config = dataclasses.replace(small, **changes)
    generator = torch.Generator().manual_seed(0)
    network = MotionMMDiT(config, 40).eval().requires_grad_(False)
    for name, parameter in network.named_parameters():
        mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        parameter.copy_(mean + 0.1 * torch.randn(parameter.shape, generator=generator))
    return network


@torch.inference_mode()
def both_velocities(network: MotionMMDiT) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Velocities of the valid frames of four clips, plain and fused."""
    from hymotion_ray.model.fused.network import FusedMMDiT

    generator = torch.Generator().manual_seed(1)
    context = torch.randn(3, 5, 32, generator=generator)
    vector, t = torch.randn(3, 1, 16, generator=generator), torch.rand(3, generator=generator)
    x = torch.randn(4, 33, 201, generator=generator)
    tokens, frames, index = torch.tensor(TOKENS), torch.tensor(LENGTHS), torch.tensor(INDEX)
    found = []
    for form in (network, FusedMMDiT(network)):
        text = form.text_stream(context, vector, t, tokens)
        layout = form.motion_layout(frames, tokens[index], 33, 5)
        v = form.motion_stream(x, text.pick(index), layout)
        found.append([v[i, :n] for i, n in enumerate(LENGTHS)])
    return found[0], found[1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mask_mode": "causal"},
        {"mask_mode": "none", "apply_rope_to_single_branch": True},
        {"qkv_bias": False, "narrowband_length": 1 / 30},
    ],
    ids=["released", "causal", "no band, no rope of text", "no bias, band of one frame"],
)
def test_fused_network_is_the_plain_one(changes: dict[str, object]) -> None:
    plain, fused = both_velocities(make_network(**changes))
    for want, got in zip(plain, fused, strict=True):
        assert (got - want).norm() / want.norm() < 1e-6


@torch.inference_mode()
def test_text_goes_where_it_is_wanted() -> None:
    from hymotion_ray.model.fused.network import FusedMMDiT

    fused = FusedMMDiT(make_network())
    generator = torch.Generator().manual_seed(1)
    context, vector = torch.randn(3, 5, 32, generator=generator), torch.zeros(3, 1, 16)
    t, tokens = torch.tensor([0.1, 0.5, 0.9]), torch.tensor(TOKENS)
    text = fused.text_stream(context, vector, t, tokens)
    rows = fused.empty_text_rows(6, 5)
    index = torch.tensor([4, 0, 5])
    for part in (rows.stream.keys, rows.stream.values, rows.stream.modulation):
        part.fill_(7.0)
    fused.text_stream_into(rows, index, context, vector, t, tokens)
    for part in ("keys", "values", "modulation"):
        assert torch.equal(getattr(rows.stream, part)[index], getattr(text.stream, part))
        assert bool((getattr(rows.stream, part)[[1, 2, 3]] == 7.0).all())


def test_weights_keep_their_names_and_values_in_the_fused_form() -> None:
    from hymotion_ray.model.fused.network import FusedMMDiT

    network = make_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    FusedMMDiT(network)
    after = network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_no_gpu_means_the_plain_network_and_the_reason_says_so() -> None:
    network = make_network()
    assert fused_or_plain(network) is network
    assert why_plain(network) == "the kernels are for CUDA devices, this one is cpu"
