"""The motion network: a two-stream diffusion transformer that predicts the flow's velocity.

Parameters carry the names of published checkpoints without their `motion_transformer.` prefix, so
loading is a strict `load_state_dict`. Knows nothing of files, sampling, guidance or noise.

`forward` is `motion_stream(x, text_stream(...), motion_layout(...))`. A sampler calls the parts
itself: the text half once per prompt and time, the layout once per batch, the motion half each
step.

Shapes: T text rows, B motion rows, N text tokens, L motion frames, D width, C context width,
V vector width, K blocks, H heads, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.model.activations import silu
from hymotion_ray.model.attention import length_mask, motion_mask, text_mask
from hymotion_ray.model.blocks import DoubleBlock, FinalLayer, SingleBlock
from hymotion_ray.model.embeddings import TimeMlp, VectorMlp
from hymotion_ray.model.linear import Linear
from hymotion_ray.model.rope import rope_table, rotate
from hymotion_ray.model.streams import MotionLayout, TextStream
from hymotion_ray.model.text_refiner import TextRefiner


class MotionMMDiT(nn.Module):
    """Velocity of a noisy motion under a text condition.

    `train_frames` is the training window: with rotary positions over the whole sequence, text
    stands right after it, however short the clip is.
    """

    def __init__(self, config: NetworkConfig, train_frames: int) -> None:
        super().__init__()
        dim, heads, mlp_dim = config.feat_dim, config.num_heads, config.mlp_dim
        self.config = config
        self.train_frames = train_frames
        self.num_heads_here = heads
        """Heads that this process computes: all, unless they are split over processes."""
        if config.insert_start_token:
            self.start_token = nn.Parameter(torch.zeros(1, dim))
        if config.with_long_skip_connection:
            self.long_skip_net = FinalLayer(dim, dim)
        self.input_encoder = Linear(config.input_dim, dim)
        self.ctxt_encoder = Linear(config.ctxt_input_dim, dim)
        self.vtxt_encoder = VectorMlp(config.vtxt_input_dim, dim)
        self.timestep_encoder = TimeMlp(dim, config.time_factor)
        self.text_refiner = TextRefiner(dim, heads, mlp_dim, config.refiner_num_layers)
        doubles = [
            DoubleBlock(dim, heads, mlp_dim, config.qkv_bias)
            for _ in range(config.num_double_blocks)
        ]
        singles = [SingleBlock(dim, heads, mlp_dim) for _ in range(config.num_single_blocks)]
        self.double_blocks = cast("Sequence[DoubleBlock]", nn.ModuleList(doubles))
        self.single_blocks = cast("Sequence[SingleBlock]", nn.ModuleList(singles))
        self.final_layer = FinalLayer(dim, config.input_dim)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, and of the activations between layers."""
        return self.input_encoder.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.input_encoder.weight.device

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        vector: Tensor,
        t: Tensor,
        x_length: Tensor,
        context_length: Tensor,
    ) -> Tensor:
        """Velocity (B, L, 201) in the network's dtype; what it says of padded frames means nothing.

        x (B, L, 201) noisy motion, context (B, N, C) and vector (B, 1, V) text features, t (B,) in
        [0, 1], x_length and context_length (B,) int64. Padded frames and tokens have no influence,
        whatever they hold. A context of length 0 is text that nobody sees. Raises `ConfigError` for
        L above `train_frames`.
        """
        x = x.masked_fill(~length_mask(x_length, x.shape[1]).unsqueeze(-1), 0.0)
        text = self.text_stream(context, vector, t, context_length)
        layout = self.motion_layout(x_length, context_length, x.shape[1], context.shape[1])
        return self.motion_stream(x, text, layout)

    def text_stream(
        self, context_TNC: Tensor, vector_T1V: Tensor, t_T: Tensor, context_length_T: Tensor
    ) -> TextStream:
        """The text half for T pairs of prompt and time: what motion attends to and is modulated by.

        context (T, N, C), vector (T, 1, V), t (T,), context_length (T,).
        """
        x_TND, silu_a_T1D, silu_time_T1D = self.embed_text(
            context_TNC, vector_T1V, t_T, context_length_T
        )
        mask_T1NN = text_mask(context_length_T, context_TNC.shape[1], self.dtype)
        rope = self.text_rope(context_TNC.shape[1])
        _, keys, values, modulations = run_text(self.blocks, x_TND, silu_a_T1D, mask_T1NN, rope)
        modulations += self.end_modulations(silu_a_T1D, silu_time_T1D)
        return TextStream(
            torch.stack(keys, 1), torch.stack(values, 1), torch.cat(modulations, dim=-1)
        )

    def embed_text(
        self, context_TNC: Tensor, vector_T1V: Tensor, t_T: Tensor, context_length_T: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Refined tokens (T, N, D), and SiLU of the adapter and of its time part, (T, 1, D)."""
        valid_TN1 = length_mask(context_length_T, context_TNC.shape[1]).unsqueeze(-1)
        c_TND = self.ctxt_encoder(context_TNC.masked_fill(~valid_TN1, 0.0).to(self.dtype))
        x_TND = self.text_refiner(c_TND, t_T, context_length_T)
        return x_TND, *self.adapter(vector_T1V, t_T)

    def adapter(self, vector_T1V: Tensor, t_T: Tensor) -> tuple[Tensor, Tensor]:
        """SiLU of the adapter and of its time part, (T, 1, D): what modulations are made from."""
        time_TD = self.timestep_encoder(t_T)
        a_TD = time_TD + self.vtxt_encoder(vector_T1V.squeeze(1).to(self.dtype))
        return silu(a_TD).unsqueeze(1), silu(time_TD).unsqueeze(1)

    def end_modulations(self, silu_a_T1D: Tensor, silu_time_T1D: Tensor) -> list[Tensor]:
        """Modulations of the final layer and, where there is one, of the long skip."""
        modulations = [self.final_layer.adaLN_modulation(silu_a_T1D)]
        if self.config.with_long_skip_connection:
            modulations.append(self.long_skip_net.adaLN_modulation(silu_time_T1D))
        return modulations

    def motion_layout(
        self, x_length_B: Tensor, context_length_B: Tensor, num_frames: int, num_tokens: int
    ) -> MotionLayout:
        """Mask and positions of B clips of `num_frames` frames and `num_tokens` text tokens.

        The lengths (B,) say how many of each are not padding. Raises `ConfigError` for more frames
        than the training window.
        """
        self.check_frames(num_frames)
        start = int(self.config.insert_start_token)
        mask_B1LS = motion_mask(
            x_length_B + start,
            num_frames + start,
            context_length_B,
            num_tokens,
            self.config.mask_mode,
            self.config.band_frames,
            self.dtype,
        )
        positions_L = torch.arange(num_frames + start, device=x_length_B.device)
        return MotionLayout(mask_B1LS, rope_table(positions_L, self.config.head_dim))

    def check_frames(self, num_frames: int) -> None:
        """Raise `ConfigError` for more frames than the training window."""
        if num_frames > self.train_frames:
            raise ConfigError(
                f"num_frames is {num_frames}; allowed: at most {self.train_frames}, the window "
                "this model was trained on; ask for a shorter clip"
            )

    def motion_stream(self, x: Tensor, text: TextStream, layout: MotionLayout) -> Tensor:
        """The motion half: velocity (B, L, 201) of x (B, L, 201); `text` has one row a clip.

        Static shapes in, static shapes out, nothing read back to the host.
        """
        embedded_BLD = self.embed_motion(x)
        num_blocks = len(self.blocks)
        modulations = text.modulation.split(self.modulation_widths(), dim=-1)
        h_BLD = run_motion(self.blocks, embedded_BLD, modulations[:num_blocks], text, layout)
        return self.finish_motion(h_BLD, embedded_BLD, modulations[num_blocks:])

    def embed_motion(self, x: Tensor) -> Tensor:
        """Motion tokens (B, L, D) of x (B, L, 201), the start token before them if there is one."""
        h_BLD = self.input_encoder(x.to(self.dtype))
        if self.config.insert_start_token:
            start_B1D = self.start_token.expand(len(x), 1, -1)
            h_BLD = torch.cat((start_B1D, h_BLD), dim=1)
        return h_BLD

    def finish_motion(
        self, h_BLD: Tensor, embedded_BLD: Tensor, modulations: Sequence[Tensor]
    ) -> Tensor:
        """Velocity (B, L, 201); `modulations` as `end_modulations` gives them."""
        if self.config.with_long_skip_connection:
            h_BLD = h_BLD + self.long_skip_net(embedded_BLD, modulations[1])
        if self.config.insert_start_token:
            h_BLD = h_BLD[:, 1:]
        return self.final_layer(h_BLD, modulations[0])

    @property
    def blocks(self) -> tuple[DoubleBlock | SingleBlock, ...]:
        """All blocks, in order."""
        return (*self.double_blocks, *self.single_blocks)

    def repeat_token(self, text: TextStream, num_tokens: int) -> TextStream:
        """The text stream of a context of `num_tokens` equal tokens, from that of one such token.

        Equal tokens under a mask of validity alone stay equal through every block: what each
        attends to is one and the same value. Only their keys differ, by the rotation of their
        positions. So this also serves every shorter length, under that length's mask.
        """
        shape = (-1, -1, num_tokens, -1, -1)
        keys, values = text.keys.expand(shape), text.values.expand(shape)
        if not self.config.apply_rope_to_single_branch:
            offsets_N = torch.arange(num_tokens, device=keys.device)
            table = rope_table(offsets_N, self.config.head_dim)
            turned = rotate(keys.flatten(0, 1).float(), table)
            keys = turned.unflatten(0, text.keys.shape[:2]).to(keys.dtype)
        return TextStream(keys, values, text.modulation)

    def empty_text_rows(self, num_rows: int, num_tokens: int) -> TextStream:
        """Unwritten memory for the text stream of `num_rows` rows of `num_tokens` tokens."""
        config = self.config
        kv_shape = (num_rows, config.num_layers, num_tokens, self.num_heads_here, config.head_dim)
        weight = self.input_encoder.weight
        return TextStream(
            weight.new_empty(kv_shape),
            weight.new_empty(kv_shape),
            weight.new_empty(num_rows, 1, sum(self.modulation_widths())),
        )

    def text_row_bytes(self, num_tokens: int) -> int:
        """Memory that one row of a text stream takes."""
        width = self.num_heads_here * self.config.head_dim
        keys_and_values = 2 * self.config.num_layers * num_tokens * width
        return (keys_and_values + sum(self.modulation_widths())) * self.dtype.itemsize

    def text_rope(self, num_tokens: int) -> Tensor | None:
        """Positions of the text tokens: after the training window, or none."""
        if self.config.apply_rope_to_single_branch:
            return None
        first = self.train_frames + int(self.config.insert_start_token)
        positions_N = torch.arange(first, first + num_tokens, device=self.device)
        return rope_table(positions_N, self.config.head_dim)

    def modulation_widths(self) -> list[int]:
        """Widths of the parts of `TextStream.modulation`, in order."""
        config = self.config
        chunks = [6] * config.num_double_blocks + [3] * config.num_single_blocks + [2]
        if config.with_long_skip_connection:
            chunks.append(2)
        return [n * config.feat_dim for n in chunks]


def run_text(
    blocks: Sequence[DoubleBlock | SingleBlock],
    x_TND: Tensor,
    silu_a_T1D: Tensor,
    mask_T1NN: Tensor,
    rope: Tensor | None,
    *,
    is_end: bool = True,
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    """Carry text tokens through `blocks`: the tokens, then each block's keys, values, modulation.

    With `is_end` the last of them is the network's last, whose tokens nobody reads.
    """
    keys, values, modulations = [], [], []
    for i, block in enumerate(blocks):
        if isinstance(block, DoubleBlock):
            x_TND, k_TNHE, v_TNHE = block.text(x_TND, silu_a_T1D, mask_T1NN, rope)
            modulation_T1C = block.motion_mod(silu_a_T1D)
        else:
            modulation_T1C = block.modulation(silu_a_T1D)
            if is_end and i == len(blocks) - 1:
                k_TNHE, v_TNHE = block.text_keys(x_TND, modulation_T1C, rope)
            else:
                x_TND, k_TNHE, v_TNHE = block.text(x_TND, modulation_T1C, mask_T1NN, rope)
        keys.append(k_TNHE)
        values.append(v_TNHE)
        modulations.append(modulation_T1C)
    return x_TND, keys, values, modulations


def run_motion(
    blocks: Sequence[DoubleBlock | SingleBlock],
    h_BLD: Tensor,
    modulations: Sequence[Tensor],
    text: TextStream,
    layout: MotionLayout,
) -> Tensor:
    """Carry motion tokens through `blocks`, whose keys and values `text` holds."""
    keys, values = text.keys.unbind(1), text.values.unbind(1)
    for block, modulation, k, v in zip(blocks, modulations, keys, values, strict=True):
        h_BLD = block.motion(h_BLD, modulation, k, v, layout.mask, layout.rope)
    return h_BLD
