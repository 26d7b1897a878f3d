"""The shape and switches of the motion network. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hymotion_ray.config.fields import require

MaskMode = Literal["narrowband", "causal", "none"]


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """A flow-matching diffusion transformer with double and single stream blocks."""

    feat_dim: int
    """Width D of the network."""
    num_layers: int
    """Blocks in all: the first third double stream, the others single stream."""
    num_heads: int
    """Attention heads H; the head width is feat_dim / num_heads."""
    ctxt_input_dim: int
    """Width C of the context text features."""
    vtxt_input_dim: int
    """Width V of the vector text feature."""
    input_dim: int = 201
    """Numbers a motion frame."""
    mlp_ratio: float = 4.0
    """Hidden width of the MLPs over feat_dim."""
    mask_mode: MaskMode = "none"
    """Which motion frames see which: inside a band, only earlier ones, or all."""
    narrowband_length: float = 2.0
    """Half width of the band in seconds, at 30 frames a second."""
    insert_start_token: bool = False
    """Whether a learned row precedes the motion sequence."""
    with_long_skip_connection: bool = False
    """Whether the embedded input is added before the final layer."""
    apply_rope_to_single_branch: bool = True
    """True: rotary positions on motion only; false: over the whole sequence."""
    time_factor: float = 1.0
    """Factor on t before the sinusoid of the main timestep embedding."""
    qkv_bias: bool = True
    """Whether the query-key-value projections of the double blocks have a bias."""
    refiner_num_layers: int = 2
    """Blocks of the text refiner."""

    def __post_init__(self) -> None:
        for name in ("feat_dim", "num_layers", "num_heads", "ctxt_input_dim", "vtxt_input_dim"):
            require(getattr(self, name) > 0, name, getattr(self, name), "a positive number")
        require(self.num_layers % 3 == 0, "num_layers", self.num_layers, "a multiple of 3")
        require(
            self.feat_dim % (2 * self.num_heads) == 0,
            "feat_dim",
            self.feat_dim,
            f"a multiple of 2 * num_heads = {2 * self.num_heads}",
        )
        require(self.input_dim == 201, "input_dim", self.input_dim, "201")
        require(self.mlp_ratio > 0, "mlp_ratio", self.mlp_ratio, "a positive number")
        require(
            self.narrowband_length > 0, "narrowband_length", self.narrowband_length, "seconds > 0"
        )
        require(
            self.refiner_num_layers > 0, "refiner_num_layers", self.refiner_num_layers, "at least 1"
        )

    @property
    def num_double_blocks(self) -> int:
        """Blocks with one set of weights a stream."""
        return self.num_layers // 3

    @property
    def num_single_blocks(self) -> int:
        """Blocks with one set of weights for both streams."""
        return self.num_layers - self.num_double_blocks

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.feat_dim // self.num_heads

    @property
    def mlp_dim(self) -> int:
        """Hidden width of the MLPs."""
        return int(self.feat_dim * self.mlp_ratio)

    @property
    def band_frames(self) -> int:
        """Half width of the band in frames."""
        return round(30 * self.narrowband_length)
