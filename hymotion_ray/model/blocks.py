"""The network's blocks, each in two halves: the text half, and the motion half that reads it.

Text never attends to motion, so the text half needs no motion: `text` carries the text tokens on
and returns the keys and values that motion will attend to, and `motion` takes those. `modulation`
depends on prompt and time only and is given to both halves.

Shapes: T text rows, B motion rows, N text tokens, L motion tokens, D width, H heads, E head width,
M hidden width of the MLPs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hymotion_ray.model.activations import gelu_tanh
from hymotion_ray.model.attention import attention
from hymotion_ray.model.layers import EPS, GeluMlp, Modulation, modulate, norm_and_rotate
from hymotion_ray.model.linear import Linear, linear
from hymotion_ray.model.train_attention import BandMask, band_attention


class DoubleBlock(nn.Module):
    """Two streams with weights of their own that meet in motion's attention."""

    def __init__(self, dim: int, num_heads: int, mlp_dim: int, qkv_bias: bool) -> None:
        super().__init__()
        head_dim = dim // num_heads
        self.num_heads = num_heads
        self.motion_mod = Modulation(dim, 6)
        self.motion_qkv = Linear(dim, 3 * dim, bias=qkv_bias)
        self.motion_q_norm = nn.RMSNorm(head_dim, eps=EPS)
        self.motion_k_norm = nn.RMSNorm(head_dim, eps=EPS)
        self.motion_out_proj = Linear(dim, dim)
        self.motion_mlp = GeluMlp(dim, mlp_dim)
        self.text_mod = Modulation(dim, 6)
        self.text_qkv = Linear(dim, 3 * dim, bias=qkv_bias)
        self.text_q_norm = nn.RMSNorm(head_dim, eps=EPS)
        self.text_k_norm = nn.RMSNorm(head_dim, eps=EPS)
        self.text_out_proj = Linear(dim, dim)
        self.text_mlp = GeluMlp(dim, mlp_dim)

    def text(
        self, x_TND: Tensor, silu_a_T1D: Tensor, mask_T1NN: Tensor, rope: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Carry the text tokens through; returns them, and their keys and values (T, N, H, E)."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.text_mod(silu_a_T1D).chunk(6, dim=-1)
        qkv = self.text_qkv(modulate(x_TND, shift1, scale1))
        q_TNHE, k_TNHE, v_TNHE = qkv.unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        q_TNHE = norm_and_rotate(q_TNHE, self.text_q_norm, rope)
        k_TNHE = norm_and_rotate(k_TNHE, self.text_k_norm, rope)
        seen_TND = attention(q_TNHE, k_TNHE, v_TNHE, mask_T1NN)
        x_TND = x_TND + gate1 * self.text_out_proj(seen_TND)
        x_TND = x_TND + gate2 * self.text_mlp(modulate(x_TND, shift2, scale2))
        return x_TND, k_TNHE, v_TNHE

    def motion(
        self,
        x_BLD: Tensor,
        modulation_B1C: Tensor,
        text_k_BNHE: Tensor,
        text_v_BNHE: Tensor,
        mask: Tensor | BandMask,
        rope: Tensor,
    ) -> Tensor:
        """Carry the motion tokens through; `modulation` is `motion_mod`'s output, C = 6 D."""
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation_B1C.chunk(6, dim=-1)
        qkv = self.motion_qkv(modulate(x_BLD, shift1, scale1))
        qkv_BL3HE = qkv.unflatten(-1, (3, self.num_heads, -1))
        norms = self.motion_q_norm, self.motion_k_norm
        seen_BLD = _motion_attention(qkv_BL3HE, norms, rope, text_k_BNHE, text_v_BNHE, mask)
        x_BLD = x_BLD + gate1 * self.motion_out_proj(seen_BLD)
        return x_BLD + gate2 * self.motion_mlp(modulate(x_BLD, shift2, scale2))


class SingleBlock(nn.Module):
    """One set of weights for both streams; attention and MLP side by side."""

    def __init__(self, dim: int, num_heads: int, mlp_dim: int) -> None:
        super().__init__()
        head_dim = dim // num_heads
        self.dim = dim
        self.num_heads = num_heads
        self.split = (3 * dim, mlp_dim)
        self.modulation = Modulation(dim, 3)
        self.linear1 = Linear(dim, 3 * dim + mlp_dim)
        self.linear2 = Linear(dim + mlp_dim, dim)
        self.q_norm = nn.RMSNorm(head_dim, eps=EPS)
        self.k_norm = nn.RMSNorm(head_dim, eps=EPS)

    def text(
        self, x_TND: Tensor, modulation_T1C: Tensor, mask_T1NN: Tensor, rope: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Carry the text tokens through; returns them, and their keys and values (T, N, H, E)."""
        shift, scale, gate = modulation_T1C.chunk(3, dim=-1)
        qkv, hidden_TNM = self.linear1(modulate(x_TND, shift, scale)).split(self.split, dim=-1)
        q_TNHE, k_TNHE, v_TNHE = qkv.unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        q_TNHE = norm_and_rotate(q_TNHE, self.q_norm, rope)
        k_TNHE = norm_and_rotate(k_TNHE, self.k_norm, rope)
        seen_TND = attention(q_TNHE, k_TNHE, v_TNHE, mask_T1NN)
        mixed_TND = self.linear2(torch.cat((seen_TND, gelu_tanh(hidden_TNM)), dim=-1))
        return x_TND + gate * mixed_TND, k_TNHE, v_TNHE

    def text_keys(
        self, x_TND: Tensor, modulation_T1C: Tensor, rope: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (T, N, H, E) alone: all that is used of the last block's text half."""
        shift, scale, _ = modulation_T1C.chunk(3, dim=-1)
        rows = slice(self.dim, 3 * self.dim)
        kv = linear(
            modulate(x_TND, shift, scale), self.linear1.weight[rows], self.linear1.bias[rows]
        )
        k_TNHE, v_TNHE = kv.unflatten(-1, (2, self.num_heads, -1)).unbind(2)
        return norm_and_rotate(k_TNHE, self.k_norm, rope), v_TNHE

    def motion(
        self,
        x_BLD: Tensor,
        modulation_B1C: Tensor,
        text_k_BNHE: Tensor,
        text_v_BNHE: Tensor,
        mask: Tensor | BandMask,
        rope: Tensor,
    ) -> Tensor:
        """Carry the motion tokens through; `modulation` is `self.modulation`'s output, C = 3 D."""
        shift, scale, gate = modulation_B1C.chunk(3, dim=-1)
        qkv, hidden_BLM = self.linear1(modulate(x_BLD, shift, scale)).split(self.split, dim=-1)
        qkv_BL3HE = qkv.unflatten(-1, (3, self.num_heads, -1))
        norms = self.q_norm, self.k_norm
        seen_BLD = _motion_attention(qkv_BL3HE, norms, rope, text_k_BNHE, text_v_BNHE, mask)
        mixed_BLD = self.linear2(torch.cat((seen_BLD, gelu_tanh(hidden_BLM)), dim=-1))
        return x_BLD + gate * mixed_BLD


class FinalLayer(nn.Module):
    """Modulated LayerNorm and Linear(D -> out): (B, L, D) -> (B, L, out)."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.adaLN_modulation = Modulation(dim, 2)
        self.linear = Linear(dim, out_dim)

    def forward(self, x_BLD: Tensor, modulation_B1C: Tensor) -> Tensor:
        """`modulation` is `adaLN_modulation`'s output, C = 2 D."""
        shift, scale = modulation_B1C.chunk(2, dim=-1)
        return self.linear(modulate(x_BLD, shift, scale))


def _motion_attention(
    qkv_BL3HE: Tensor,
    norms: tuple[nn.RMSNorm, nn.RMSNorm],
    rope: Tensor,
    text_k_BNHE: Tensor,
    text_v_BNHE: Tensor,
    mask: Tensor | BandMask,
) -> Tensor:
    """What motion sees of motion and text, (B, L, D), under either kind of mask."""
    if isinstance(mask, BandMask):
        weights = norms[0].weight, norms[1].weight
        return band_attention(qkv_BL3HE, *weights, rope, text_k_BNHE, text_v_BNHE, mask)
    q_BLHE, k_BLHE, v_BLHE = qkv_BL3HE.unbind(2)
    q_BLHE, k_BLHE = (
        norm_and_rotate(x_BLHE, norm, rope)
        for x_BLHE, norm in zip((q_BLHE, k_BLHE), norms, strict=True)
    )
    k_BSHE = torch.cat((k_BLHE, text_k_BNHE), dim=1)
    v_BSHE = torch.cat((v_BLHE, text_v_BNHE), dim=1)
    return attention(q_BLHE, k_BSHE, v_BSHE, mask)
