"""Band attention against the dense mask: equal outputs and gradients, in the interpreter."""

import os

import pytest
import torch
from torch import Tensor

from hymotion_ray.config.network import MaskMode
from hymotion_ray.model.attention import motion_mask
from hymotion_ray.model.blocks import SingleBlock
from hymotion_ray.model.rope import rope_table
from hymotion_ray.model.train_attention import band_mask, has_band_attention

pytest.importorskip("triton", reason="Triton comes with torch's builds for GPUs")

on_cpu = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="a GPU is here: tests/gpu has its tests"
)


def with_gradients(out: Tensor, *inputs: Tensor) -> list[Tensor | None]:
    weights = torch.linspace(-1, 1, out.numel()).view_as(out)
    return [out, *torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)]


@on_cpu
@pytest.mark.parametrize("width", [16, 24])
@pytest.mark.parametrize("mode", ["narrowband", "causal", "none"])
@pytest.mark.parametrize("num_frames", [21, 150])
def test_band_attention_is_attention_under_the_dense_mask(
    mode: MaskMode, num_frames: int, width: int
) -> None:
    torch.manual_seed(0)
    block = SingleBlock(2 * width, 2, 4 * width)
    for norm in (block.q_norm, block.k_norm):
        torch.nn.init.normal_(norm.weight, 1.0, 0.1)
    x = torch.randn(3, num_frames, 2 * width, requires_grad=True)
    modulation = torch.randn(3, 1, 6 * width)
    text = torch.randn(3, 70, 2, 2, width, requires_grad=True)
    frames, tokens = torch.tensor([num_frames, num_frames // 3, 1]), torch.tensor([70, 0, 5])
    band, rope = num_frames // 6, rope_table(torch.arange(num_frames), width)
    dense = motion_mask(frames, num_frames, tokens, 70, mode, band, torch.float32)
    inputs = x, text, *block.parameters()
    near, far = (
        with_gradients(block.motion(x, modulation, *text.unbind(2), mask, rope), *inputs)
        for mask in (band_mask(frames, tokens, mode, band), dense)
    )
    for ours, theirs in zip(near, far, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


@on_cpu
def test_the_operators_are_what_they_say() -> None:
    """Fake outputs, gradients and tracing agree with the kernels, as torch.compile needs."""
    qkv, text_k, text_v, q_norm, k_norm = (
        torch.randn(shape, requires_grad=True)
        for shape in ((1, 20, 3, 1, 16), (1, 4, 1, 16), (1, 4, 1, 16), (16,), (16,))
    )
    rope = rope_table(torch.arange(20), 16)
    mask = band_mask(torch.tensor([18]), torch.tensor([3]), "narrowband", 5)
    torch.library.opcheck(
        torch.ops.hymotion_ray.band_attention.default,
        (qkv, q_norm, k_norm, rope, text_k, text_v, *mask),
    )


def test_a_processor_does_not_train_with_it() -> None:
    assert not has_band_attention(torch.device("cpu"))
