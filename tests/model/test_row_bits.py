"""A row's bits do not depend on where it lies in its batch, for each layer that needed help."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hymotion_ray.model import MotionMMDiT
from hymotion_ray.model.activations import gelu_tanh, silu
from hymotion_ray.model.attention import attention, motion_mask
from hymotion_ray.model.linear import linear
from hymotion_ray.model.rope import rope_table, rotate

Threads = Callable[[int], None]


def assert_rows_alike(function: Callable[[Tensor], Tensor], row: Tensor, num_rows: int) -> None:
    """The same row at every place of a batch gives the same bits at every place."""
    with torch.inference_mode():
        out = function(row.expand(num_rows, *row.shape).contiguous())
    assert all(torch.equal(got, out[0]) for got in out)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [2, 3, 5, 7, 9])
def test_layers(threads: Threads, num_threads: int, num_rows: int) -> None:
    threads(num_threads)
    generator = torch.Generator().manual_seed(0)
    for num_inputs, num_outputs, tokens in ((201, 24, 13), (32, 96, 1), (30, 33, 7), (64, 201, 21)):
        weight = torch.randn(num_outputs, num_inputs, generator=generator)
        bias = torch.randn(num_outputs, generator=generator)
        row = torch.randn(tokens, num_inputs, generator=generator)
        assert_rows_alike(lambda x, w=weight, b=bias: linear(x, w, b), row, num_rows)
    for shape in ((1, 33), (37, 129), (150, 128)):
        row = torch.randn(shape, generator=generator)
        assert_rows_alike(gelu_tanh, row, num_rows)
        assert_rows_alike(silu, row, num_rows)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize(("frames", "tokens"), [(1, 1), (7, 3), (21, 16), (37, 5)])
def test_attention_and_rotation(
    threads: Threads, num_threads: int, frames: int, tokens: int
) -> None:
    threads(num_threads)
    length = torch.tensor([frames]).expand(5)
    mask = motion_mask(length, frames, length, tokens, "narrowband", 6, torch.float32)
    table = rope_table(torch.arange(frames), 6)
    row = torch.randn(frames + tokens, 4, 6, generator=torch.Generator().manual_seed(0))
    assert_rows_alike(lambda x: attention(x[:, :frames], x, x, mask), row, 5)
    assert_rows_alike(lambda x: rotate(x[:, :frames].contiguous(), table), row, 5)


def test_safe_layers_compute_the_same_numbers() -> None:
    """Inference and training take different code, and agree up to rounding."""
    x, weight, bias = torch.randn(3, 7, 30), torch.randn(11, 30), torch.randn(11)
    with torch.inference_mode():
        safe = linear(x, weight, bias), gelu_tanh(x), silu(x)
    plain = linear(x, weight, bias), gelu_tanh(x), silu(x)
    for got, want in zip(safe, plain, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_whole_network(
    threads: Threads,
    make_network: Callable[..., MotionMMDiT],
    num_threads: int,
    dtype: torch.dtype,
) -> None:
    threads(num_threads)
    network = make_network(insert_start_token=True).to(dtype)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 21, 201, generator=generator)
    context = torch.randn(5, 6, 20, generator=generator)
    vector = torch.randn(5, 1, 12, generator=generator)
    t = torch.rand(5, generator=generator)
    x_length, context_length = torch.tensor([21, 5, 9, 1, 20]), torch.tensor([6, 1, 3, 2, 6])
    args = (x, context, vector, t, x_length, context_length)
    order = torch.tensor([3, 0, 4, 2, 1])
    with torch.inference_mode():
        out = network(*args)
        mixed = network(*(a[order] for a in args))
    for place, i in enumerate(order.tolist()):
        assert torch.equal(mixed[place, : x_length[i]], out[i, : x_length[i]])
