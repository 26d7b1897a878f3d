"""The text refiner: two or more transformer blocks over the context tokens alone.

Knows no motion, no rotary positions and no vector feature; its gates come from t and from the mean
of the valid tokens.

Shapes: T rows, N text tokens, D width, H heads, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from hymotion_ray.model.activations import silu
from hymotion_ray.model.attention import attention, length_mask, text_mask
from hymotion_ray.model.embeddings import TimeMlp, VectorMlp
from hymotion_ray.model.layers import EPS, Modulation
from hymotion_ray.model.linear import Linear


class SiluMlp(nn.Module):
    """Linear, SiLU, Linear over the last dimension."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden_dim)
        self.fc2 = Linear(hidden_dim, dim)

    def forward(self, x_TND: Tensor) -> Tensor:
        """Transform each token by itself."""
        return self.fc2(silu(self.fc1(x_TND)))


class RefinerBlock(nn.Module):
    """Self-attention and MLP, each behind a LayerNorm and a gate."""

    def __init__(self, dim: int, num_heads: int, hidden_dim: int) -> None:
        super().__init__()
        head_dim = dim // num_heads
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.self_attn_qkv = Linear(dim, 3 * dim)
        self.self_attn_q_norm = nn.LayerNorm(head_dim, eps=EPS)
        self.self_attn_k_norm = nn.LayerNorm(head_dim, eps=EPS)
        self.self_attn_proj = Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = SiluMlp(dim, hidden_dim)
        self.adaLN_modulation = Modulation(dim, 2)

    def forward(self, x_TND: Tensor, gate_T1D: Tensor, mask_T1NN: Tensor) -> Tensor:
        """`gate_T1D` is SiLU of the gating vector; `mask_T1NN` is additive."""
        attn_gate_T1D, mlp_gate_T1D = self.adaLN_modulation(gate_T1D).chunk(2, dim=-1)
        qkv = self.self_attn_qkv(self.norm1(x_TND)).unflatten(-1, (3, self.num_heads, -1))
        q_TNHE, k_TNHE, v_TNHE = qkv.unbind(2)
        q_TNHE = self.self_attn_q_norm(q_TNHE)
        k_TNHE = self.self_attn_k_norm(k_TNHE)
        seen_TND = attention(q_TNHE, k_TNHE, v_TNHE, mask_T1NN)
        x_TND = x_TND + attn_gate_T1D * self.self_attn_proj(seen_TND)
        return x_TND + mlp_gate_T1D * self.mlp(self.norm2(x_TND))


class TokenRefiner(nn.Module):
    """The stack of blocks, under the name that published checkpoints give it."""

    def __init__(self, dim: int, num_heads: int, hidden_dim: int, num_layers: int) -> None:
        super().__init__()
        blocks = [RefinerBlock(dim, num_heads, hidden_dim) for _ in range(num_layers)]
        self.blocks = cast("Sequence[RefinerBlock]", nn.ModuleList(blocks))


class TextRefiner(nn.Module):
    """Context tokens of width D, and t, to refined tokens: (T, N, D) -> (T, N, D)."""

    def __init__(self, dim: int, num_heads: int, hidden_dim: int, num_layers: int) -> None:
        super().__init__()
        self.input_embedder = Linear(dim, dim)
        self.context_encoder = VectorMlp(dim, dim)
        # The refiner's own time factor is 1, whatever the network's is.
        self.timestep_encoder = TimeMlp(dim, time_factor=1.0)
        self.individual_token_refiner = TokenRefiner(dim, num_heads, hidden_dim, num_layers)

    def forward(self, c_TND: Tensor, t_T: Tensor, length_T: Tensor) -> Tensor:
        """Refine; tokens at or past `length_T` neither count in the mean nor are attended to."""
        num_tokens = c_TND.shape[1]
        valid_TN1 = length_mask(length_T, num_tokens).unsqueeze(-1)
        # An empty context has the mean 0.
        count_T1 = length_T.clamp(min=1).unsqueeze(1).to(c_TND.dtype)
        mean_TD = c_TND.masked_fill(~valid_TN1, 0.0).sum(1) / count_T1
        g_TD = self.timestep_encoder(t_T) + self.context_encoder(mean_TD)
        gate_T1D = silu(g_TD).unsqueeze(1)
        mask_T1NN = text_mask(length_T, num_tokens, c_TND.dtype)
        x_TND = self.input_embedder(c_TND)
        for block in self.individual_token_refiner.blocks:
            x_TND = block(x_TND, gate_T1D, mask_T1NN)
        return x_TND
