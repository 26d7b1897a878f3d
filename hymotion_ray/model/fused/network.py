"""The network on fused kernels: the same weights and arithmetic as `MotionMMDiT`, fewer passes.

Products stay with the vendor's libraries (`products.py`); everything between them is one kernel
each: residual + norm + modulation, keys, attention. All modulations of a text row come from one
product. Motion's products may be in float8, an approximate mode; the text half never is.
Only inference, only the shapes of released models (`can_fuse`); results equal the plain network's
up to rounding, and a row's bits depend on the row and the cell alone.

Shapes: T text rows, B motion rows, N text tokens, L motion frames, D width, K blocks, H heads,
E head width, C width of all modulations.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hymotion_ray.model.blocks import DoubleBlock, SingleBlock
from hymotion_ray.model.fused.attention import NO_BAND, fused_attention
from hymotion_ray.model.fused.choose import HEAD_DIM
from hymotion_ray.model.fused.keys import keys_and_values, keys_in_place
from hymotion_ray.model.fused.norms import gated_norm
from hymotion_ray.model.fused.products import (
    MotionProducts,
    Products8,
    Products16,
    first_products,
    last_products,
    mlp,
)
from hymotion_ray.model.fused.rows import FusedLayout, FusedRows
from hymotion_ray.model.layers import Modulation
from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.model.rope import rope_table
from hymotion_ray.model.streams import TextStream

_FEATURES_MULTIPLE = 8
"""Inputs and outputs of a product are padded to this, below which matrix units do not serve."""


class FusedMMDiT:
    """Wraps a `MotionMMDiT` in bfloat16 or float16 on a GPU; its weights are shared, not copied.

    The modulation weights of `network` are moved into one tensor that its layers become views of.
    """

    replays = True
    """Calls of `motion_stream` may be captured in a CUDA graph."""

    def __init__(self, network: MotionMMDiT, *, float8: bool = False) -> None:
        """`float8`: motion's products in float8, from copies of the weights."""
        self.network = network
        form = Products8 if float8 else Products16
        self._products: list[MotionProducts] = [form(block) for block in network.blocks]
        self.train_frames = network.train_frames
        config = network.config
        self._heads = config.num_heads
        self._width = config.feat_dim
        self._band = config.band_frames if config.mask_mode == "narrowband" else NO_BAND
        self._causal = config.mask_mode == "causal"
        self._tables: dict[tuple[int, int], Tensor] = {}
        modulations = [
            block.motion_mod if isinstance(block, DoubleBlock) else block.modulation
            for block in network.blocks
        ]
        self._modulation = _join([*modulations, network.final_layer.adaLN_modulation])
        self._text_modulation = _join([block.text_mod for block in network.double_blocks])
        widths = network.modulation_widths()
        self._starts = [sum(widths[:i]) for i in range(len(widths))]
        first, last = network.input_encoder, network.final_layer.linear
        missing = -first.in_features % _FEATURES_MULTIPLE
        self._input_weight = F.pad(first.weight.detach(), (0, missing))
        missing = -last.out_features % _FEATURES_MULTIPLE
        self._output_weight = F.pad(last.weight.detach(), (0, 0, 0, missing))
        self._output_bias = F.pad(last.bias.detach(), (0, missing))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.network.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.device

    def to(self, dtype: torch.dtype) -> MotionMMDiT:
        """A plain network of its own with the same weights in `dtype`."""
        return copy.deepcopy(self.network).to(dtype)

    def __deepcopy__(self, memo: dict[int, object]) -> MotionMMDiT:
        """A plain network: what copies are for, other formats and changed weights, needs that."""
        return copy.deepcopy(self.network, memo)

    def text_row_bytes(self, num_tokens: int) -> int:
        """Memory that one row of a text stream takes."""
        return self.network.text_row_bytes(num_tokens)

    def empty_text_rows(self, num_rows: int, num_tokens: int) -> FusedRows:
        """Unwritten memory for `num_rows` text rows of `num_tokens` tokens."""
        return FusedRows(self.network.empty_text_rows(num_rows, num_tokens))

    def repeat_token(self, text: FusedRows, num_tokens: int) -> FusedRows:
        """As `MotionMMDiT.repeat_token`."""
        return FusedRows(self.network.repeat_token(text.stream, num_tokens))

    def motion_layout(
        self, x_length_B: Tensor, context_length_B: Tensor, num_frames: int, num_tokens: int
    ) -> FusedLayout:
        """Lengths of B clips of `num_frames` frames; every context has at least one token."""
        self.network.check_frames(num_frames)
        return FusedLayout(x_length_B, context_length_B, self._table(0, num_frames))

    def text_stream(
        self, context_TNC: Tensor, vector_T1V: Tensor, t_T: Tensor, context_length_T: Tensor
    ) -> FusedRows:
        """As `MotionMMDiT.text_stream`; every context has at least one token."""
        rows = self.empty_text_rows(*context_TNC.shape[:2])
        self.text_stream_into(rows, None, context_TNC, vector_T1V, t_T, context_length_T)
        return rows

    def text_stream_into(
        self,
        rows: FusedRows,
        index_T: Tensor | None,
        context_TNC: Tensor,
        vector_T1V: Tensor,
        t_T: Tensor,
        context_length_T: Tensor,
    ) -> None:
        """The text half, written to `rows` at `index` (T,) int64, None: in order.

        Where a place stands several times in `index`, the inputs that go there are equal.
        """
        network, target = self.network, rows.stream
        x_TND, silu_a_T1D, _ = network.embed_text(context_TNC, vector_T1V, t_T, context_length_T)
        silu_a_TD = silu_a_T1D.squeeze(1)
        modulation_TC = F.linear(silu_a_TD, *self._modulation)
        text_modulation_TC = F.linear(silu_a_TD, *self._text_modulation)
        if index_T is None:
            target.modulation.copy_(modulation_TC.unsqueeze(1))
        else:
            target.modulation[index_T] = modulation_TC.unsqueeze(1)
        table = None
        if not network.config.apply_rope_to_single_branch:
            table = self._table(self.train_frames, context_TNC.shape[1])
        num_doubles = len(network.double_blocks)
        sources = [
            (text_modulation_TC, 6 * self._width * i)
            if i < num_doubles
            else (modulation_TC, self._starts[i])
            for i in range(len(network.blocks))
        ]
        h = x_TND.contiguous()
        keys, values = target.keys.unbind(1), target.values.unbind(1)
        normed = gated_norm(h, None, sources[0][0], None, 0, sources[0][1])
        for i, block in enumerate(network.blocks[:-1]):
            qkv, hidden, norms = _text_products(block, normed)
            keys_and_values(
                qkv, norms[1], table, self._heads, self._width, keys[i], values[i], index_T
            )
            seen = fused_attention(
                qkv, norms[0], table, keys[i], values[i], index_T, None, context_length_T,
                self._heads,
            )  # fmt: skip
            normed = self._finish_text_block(block, h, seen, hidden, *sources[i], *sources[i + 1])
        last = network.single_blocks[-1]
        kv = _keys_product(last, normed)
        keys_and_values(
            kv, last.k_norm.weight, table, self._heads, 0, keys[-1], values[-1], index_T
        )

    def _finish_text_block(
        self,
        block: DoubleBlock | SingleBlock,
        h: Tensor,
        seen: Tensor,
        hidden: Tensor | None,
        modulation: Tensor,
        start: int,
        next_modulation: Tensor,
        next_start: int,
    ) -> Tensor:
        """What follows a block's attention, up to the next block's modulated norm; adds to `h`."""
        width = self._width
        if isinstance(block, DoubleBlock):
            y = block.text_out_proj(seen)
            normed = gated_norm(h, y, modulation, None, start + 2 * width, start + 3 * width)
            y, gate_at = mlp(block.text_mlp, normed), start + 5 * width
        else:
            y, gate_at = last_products(block, seen, hidden), start + 2 * width
        if next_modulation is modulation:
            return gated_norm(h, y, modulation, None, gate_at, next_start)
        gated_norm(h, y, modulation, None, gate_at, start)
        return gated_norm(h, None, next_modulation, None, 0, next_start)

    def motion_stream(self, x_BLF: Tensor, text: FusedRows, layout: FusedLayout) -> Tensor:
        """As `MotionMMDiT.motion_stream`: velocity (B, L, 201). No host reads, static shapes."""
        missing = self._input_weight.shape[1] - x_BLF.shape[-1]
        x = F.pad(x_BLF.to(self.dtype), (0, missing))
        h = F.linear(x, self._input_weight, self.network.input_encoder.bias)
        normed = self._carry_motion(h, text.stream, text.index, layout)
        v = F.linear(normed, self._output_weight, self._output_bias)
        return v[..., : x_BLF.shape[-1]]

    def _carry_motion(
        self, h: Tensor, text: TextStream, index: Tensor | None, layout: FusedLayout
    ) -> Tensor:
        """Motion tokens through all blocks, then the final norm: (B, L, D)."""
        width, starts, modulation = self._width, self._starts, text.modulation[:, 0]
        keys, values = text.keys.unbind(1), text.values.unbind(1)
        normed = gated_norm(h, None, modulation, index, 0, starts[0])
        for i, block in enumerate(self.network.blocks):
            start = starts[i]
            products = self._products[i]
            qkv, hidden = products.first(normed)
            q_norm, k_norm = _motion_norms(block)
            keys_in_place(qkv, k_norm, layout.table, self._heads)
            seen = fused_attention(
                qkv, q_norm, layout.table, keys[i], values[i], index, layout.num_frames,
                layout.num_tokens, self._heads, band=self._band, causal=self._causal,
            )  # fmt: skip
            if isinstance(block, DoubleBlock):
                y = products.out(seen)
                normed = gated_norm(h, y, modulation, index, start + 2 * width, start + 3 * width)
                y, gate_at = products.mlp(normed), start + 5 * width
            else:
                y, gate_at = products.last(seen, hidden), start + 2 * width
            normed = gated_norm(h, y, modulation, index, gate_at, starts[i + 1])
        return normed

    def _table(self, first: int, number: int) -> Tensor:
        """Cosines and sines (2, number, E/2) fp32 of `number` positions from `first` on."""
        if (first, number) not in self._tables:
            positions = torch.arange(first, first + number, device=self.device)
            table = rope_table(positions, HEAD_DIM).squeeze(2).contiguous()
            self._tables[first, number] = table
        return self._tables[first, number]


def _join(modulations: Sequence[Modulation]) -> tuple[Tensor, Tensor]:
    """Weight and bias of all `modulations` in one, of which their own become views."""
    linears = [modulation.linear for modulation in modulations]
    weight = torch.cat([linear.weight.detach() for linear in linears])
    bias = torch.cat([linear.bias.detach() for linear in linears])
    at = 0
    for linear in linears:
        end = at + linear.out_features
        linear.weight = nn.Parameter(weight[at:end], requires_grad=False)
        linear.bias = nn.Parameter(bias[at:end], requires_grad=False)
        at = end
    return weight, bias


def _text_products(
    block: DoubleBlock | SingleBlock, normed: Tensor
) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor]]:
    """Queries to values, hidden features of a single block, and weights of the norms of q and k."""
    if isinstance(block, DoubleBlock):
        return block.text_qkv(normed), None, (block.text_q_norm.weight, block.text_k_norm.weight)
    return *first_products(block, normed), (block.q_norm.weight, block.k_norm.weight)


def _motion_norms(block: DoubleBlock | SingleBlock) -> tuple[Tensor, Tensor]:
    """Weights of the norms of q and k in the motion half."""
    if isinstance(block, DoubleBlock):
        return block.motion_q_norm.weight, block.motion_k_norm.weight
    return block.q_norm.weight, block.k_norm.weight


def _keys_product(block: SingleBlock, normed: Tensor) -> Tensor:
    """Keys and values alone: all that is used of the last block's text half."""
    rows = slice(block.dim, block.split[0])
    return F.linear(normed, block.linear1.weight[rows], block.linear1.bias[rows])
