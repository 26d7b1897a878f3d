"""The shape and switches of the motion network. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hymotion_ray.config.fields import require

MaskMode = Literal["narrowband", "causal", "none"]
# Far above any model there is: a damaged or hostile config must not ask for all memory. NaN fails
# each of them.
_MOST: dict[str, float] = {
    "feat_dim": 65536,
    "num_layers": 999,
    "num_heads": 1024,
    "ctxt_input_dim": 65536,
    "vtxt_input_dim": 65536,
    "mlp_ratio": 64,
    "narrowband_length": 3600,
    "time_factor": 1e6,
    "refiner_num_layers": 99,
}


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
        for name, most in _MOST.items():
            value = getattr(self, name)
            require(0 < value <= most, name, value, f"above 0, at most {most}")
        require(
            self.mask_mode in get_args(MaskMode), "mask_mode", self.mask_mode,
            ", ".join(get_args(MaskMode)),
        )  # fmt: skip
        require(self.num_layers % 3 == 0, "num_layers", self.num_layers, "a multiple of 3")
        require(
            self.feat_dim % (2 * self.num_heads) == 0,
            "feat_dim",
            self.feat_dim,
            f"a multiple of 2 * num_heads = {2 * self.num_heads}",
        )
        require(self.input_dim == 201, "input_dim", self.input_dim, "201")

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
