"""Band attention against the dense mask: the same outputs and gradients."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from hymotion_ray.config.network import MaskMode
from hymotion_ray.model.attention import attention, motion_mask
from hymotion_ray.model.train_attention import band_mask, has_band_attention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(autouse=True)
def backward_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch refuses it because it is slow there, not because it is wrong."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *inputs: None)


def with_gradients(out: Tensor, *inputs: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, out.numel()).view_as(out)
    return [out, *torch.autograd.grad((out * weights).sum(), inputs)]


@pytest.mark.parametrize("mode", ["narrowband", "causal", "none"])
@pytest.mark.parametrize("num_frames", [21, 200, 361])
def test_band_attention_is_attention_under_the_dense_mask(mode: MaskMode, num_frames: int) -> None:
    torch.manual_seed(0)
    band, num_tokens, shape = num_frames // 6, 13, (3, 2, 16)
    rows, heads, width = shape
    q = torch.randn(rows, num_frames, heads, width, requires_grad=True)
    k, v = (
        torch.randn(rows, num_frames + num_tokens, heads, width, requires_grad=True)
        for _ in range(2)
    )
    frames, tokens = torch.tensor([num_frames, num_frames // 3, 1]), torch.tensor([13, 0, 5])
    dense = motion_mask(frames, num_frames, tokens, num_tokens, mode, band, torch.float32)
    near = band_mask(frames, num_frames, tokens, num_tokens, mode, band)
    theirs = with_gradients(attention(q, k, v, dense), q, k, v)
    ours = with_gradients(attention(q, k, v, near), q, k, v)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=5e-6)


def test_a_long_band_leaves_far_blocks_out() -> None:
    length = torch.tensor([1024])
    mask = band_mask(length, 1024, torch.tensor([20]), 20, "narrowband", 60)
    # Each of 8 rows of blocks sees itself, its neighbours and the text.
    assert mask.kv_num_blocks.flatten().tolist() == [3, 4, 4, 4, 4, 4, 4, 3]
    assert band_mask(length, 1024, length, 20, "narrowband", 60).kv_indices is mask.kv_indices


def test_a_processor_does_not_train_with_it() -> None:
    assert not has_band_attention(torch.device("cpu"))
