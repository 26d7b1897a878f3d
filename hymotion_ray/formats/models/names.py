"""The tensors of a model by name and shape: what a checkpoint must hold. Knows no file.

The names are the published ones, as the checkpoints of tests/golden/ list them, without the prefix
`motion_transformer.`; the shapes follow from `NetworkConfig`.
Letters: D width, C context text width, V vector text width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hymotion_ray.config import NetworkConfig
from hymotion_ray.config.releases import SHAPES

Shape = tuple[int, ...]

PREFIX = "motion_transformer."
NULL_NAMES = ("null_vtxt_feat", "null_ctxt_input")
SPECIAL_NAMES = ("special_game_vtxt_feat", "special_game_ctxt_feat")
STAT_NAMES = ("mean", "std")
IGNORED_PREFIXES = ("body_model.", "text_encoder.")
NUM_FEATURES = 201


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """What the tensors themselves say of a network; None where they do not tell."""

    feat_dim: int | None
    num_layers: int
    num_heads: int | None
    ctxt_input_dim: int | None
    vtxt_input_dim: int | None

    @property
    def variant(self) -> str:
        """`1.0` or `lite` for the shapes of the released models, else `other`."""
        key = (self.feat_dim or 0, self.num_layers, self.num_heads or 0)
        return SHAPES.get(key, "other")


def dimensions_of(network: Mapping[str, torch.Tensor]) -> Dimensions:
    """Width, layers, heads and text widths as the tensor shapes give them."""
    blocks = {match.group() for name in network if (match := _BLOCK.match(name))}
    feat_dim = _size(network, "input_encoder.weight", 0)
    head_dim = _size(network, "double_blocks.0.motion_q_norm.weight", 0)
    return Dimensions(
        feat_dim=feat_dim,
        num_layers=len(blocks),
        num_heads=feat_dim // head_dim if feat_dim and head_dim else None,
        ctxt_input_dim=_size(network, "ctxt_encoder.weight", 1),
        vtxt_input_dim=_size(network, "vtxt_encoder.linears.0.weight", 1),
    )


_BLOCK = re.compile(r"(?:double|single)_blocks\.\d+(?=\.)")


def _size(network: Mapping[str, torch.Tensor], name: str, axis: int) -> int | None:
    tensor = network.get(name)
    return tensor.shape[axis] if tensor is not None and tensor.ndim > axis else None


def feature_shapes(config: NetworkConfig) -> dict[str, Shape]:
    """Shapes of the learned null and game features that stand beside the network."""
    vector, context = (1, 1, config.vtxt_input_dim), (1, 1, config.ctxt_input_dim)
    return dict(zip(NULL_NAMES + SPECIAL_NAMES, (vector, context) * 2, strict=True))


def network_shapes(config: NetworkConfig) -> dict[str, Shape]:
    """Shape of every tensor of the network, by published name without prefix."""
    D = config.feat_dim
    shapes: dict[str, Shape] = {}
    _linear(shapes, "input_encoder", config.input_dim, D)
    _linear(shapes, "ctxt_encoder", config.ctxt_input_dim, D)
    _linear(shapes, "vtxt_encoder.linears.0", config.vtxt_input_dim, D)
    _linear(shapes, "vtxt_encoder.linears.2", D, D)
    _time_mlp(shapes, "timestep_encoder", D)
    _text_refiner(shapes, config)
    for i in range(config.num_double_blocks):
        for stream in ("motion", "text"):
            _double_stream(shapes, f"double_blocks.{i}.{stream}", config)
    for i in range(config.num_single_blocks):
        _single_block(shapes, f"single_blocks.{i}", config)
    _linear(shapes, "final_layer.adaLN_modulation.linear", D, 2 * D)
    _linear(shapes, "final_layer.linear", D, config.input_dim)
    if config.insert_start_token:
        shapes["start_token"] = (1, D)
    if config.with_long_skip_connection:
        _linear(shapes, "long_skip_net.adaLN_modulation.linear", D, 2 * D)
        _linear(shapes, "long_skip_net.linear", D, D)
    return shapes


def _linear(shapes: dict[str, Shape], name: str, num_in: int, num_out: int) -> None:
    shapes[f"{name}.weight"] = (num_out, num_in)
    shapes[f"{name}.bias"] = (num_out,)


def _time_mlp(shapes: dict[str, Shape], name: str, D: int) -> None:
    _linear(shapes, f"{name}.blocks.0", D, D)
    _linear(shapes, f"{name}.blocks.2", D, D)


def _text_refiner(shapes: dict[str, Shape], config: NetworkConfig) -> None:
    D, name = config.feat_dim, "text_refiner"
    _linear(shapes, f"{name}.input_embedder", D, D)
    _linear(shapes, f"{name}.context_encoder.linears.0", D, D)
    _linear(shapes, f"{name}.context_encoder.linears.2", D, D)
    _time_mlp(shapes, f"{name}.timestep_encoder", D)
    for i in range(config.refiner_num_layers):
        block = f"{name}.individual_token_refiner.blocks.{i}"
        _linear(shapes, f"{block}.self_attn_qkv", D, 3 * D)
        _linear(shapes, f"{block}.self_attn_proj", D, D)
        _linear(shapes, f"{block}.mlp.fc1", D, config.mlp_dim)
        _linear(shapes, f"{block}.mlp.fc2", config.mlp_dim, D)
        _linear(shapes, f"{block}.adaLN_modulation.linear", D, 2 * D)
        for norm, width in (
            *(("norm1", D), ("norm2", D)),
            *(("self_attn_q_norm", config.head_dim), ("self_attn_k_norm", config.head_dim)),
        ):
            shapes[f"{block}.{norm}.weight"] = shapes[f"{block}.{norm}.bias"] = (width,)


def _double_stream(shapes: dict[str, Shape], name: str, config: NetworkConfig) -> None:
    D = config.feat_dim
    _linear(shapes, f"{name}_mod.linear", D, 6 * D)
    _linear(shapes, f"{name}_qkv", D, 3 * D)
    if not config.qkv_bias:
        del shapes[f"{name}_qkv.bias"]
    shapes[f"{name}_q_norm.weight"] = shapes[f"{name}_k_norm.weight"] = (config.head_dim,)
    _linear(shapes, f"{name}_out_proj", D, D)
    _linear(shapes, f"{name}_mlp.fc1", D, config.mlp_dim)
    _linear(shapes, f"{name}_mlp.fc2", config.mlp_dim, D)


def _single_block(shapes: dict[str, Shape], name: str, config: NetworkConfig) -> None:
    D = config.feat_dim
    _linear(shapes, f"{name}.modulation.linear", D, 3 * D)
    _linear(shapes, f"{name}.linear1", D, 3 * D + config.mlp_dim)
    _linear(shapes, f"{name}.linear2", D + config.mlp_dim, D)
    shapes[f"{name}.q_norm.weight"] = shapes[f"{name}.k_norm.weight"] = (config.head_dim,)
