"""How many weights a network has, counted from its shape. Knows no tensors.

Letters: D width, M MLP width, E head width.
"""

from __future__ import annotations

from hymotion_ray.config.network import NetworkConfig


def count_parameters(config: NetworkConfig) -> int:
    """Weights of `MotionMMDiT(config)`, start token and long skip included."""
    D = config.feat_dim
    time_mlp = 2 * _linear(D, D)
    encoders = (
        _linear(config.input_dim, D)
        + _linear(config.ctxt_input_dim, D)
        + _linear(config.vtxt_input_dim, D)
        + _linear(D, D)
        + time_mlp
    )
    final = _linear(D, 2 * D) + _linear(D, config.input_dim)
    skip = (_linear(D, 2 * D) + _linear(D, D)) * config.with_long_skip_connection
    return (
        encoders
        + _refiner(config)
        + config.num_double_blocks * 2 * _double_stream(config)
        + config.num_single_blocks * _single(config)
        + final
        + skip
        + D * config.insert_start_token
    )


def largest_block(config: NetworkConfig) -> int:
    """Weights of the largest block."""
    return max(2 * _double_stream(config), _single(config))


def count_resident(config: NetworkConfig) -> int:
    """Numbers on the device where blocks come from host memory: two blocks, and what is none."""
    doubles = config.num_double_blocks * 2 * _double_stream(config)
    blocks = doubles + config.num_single_blocks * _single(config)
    return count_parameters(config) - blocks + 2 * largest_block(config)


def count_adapters(config: NetworkConfig, rank: int) -> int:
    """Weights of low-rank adapters beside all products in blocks that the trainer adapts.

    Modulations get none, nor the first product of the last single block.
    """
    D, M = config.feat_dim, config.mlp_dim
    stream = _adapter(D, 3 * D) + _adapter(D, D) + _adapter(D, M) + _adapter(M, D)
    first, second = _adapter(D, 3 * D + M), _adapter(D + M, D)
    singles = config.num_single_blocks * (first + second) - first
    return rank * (config.num_double_blocks * 2 * stream + singles)


def _adapter(inputs: int, outputs: int) -> int:
    return inputs + outputs


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + outputs * bias


def _refiner(config: NetworkConfig) -> int:
    D, M, E = config.feat_dim, config.mlp_dim, config.head_dim
    block = (
        _linear(D, 2 * D)
        + 2 * 2 * D
        + _linear(D, 3 * D)
        + 2 * 2 * E
        + _linear(D, D)
        + _linear(D, M)
        + _linear(M, D)
    )
    return 2 * _linear(D, D) + 2 * _linear(D, D) + _linear(D, D) + config.refiner_num_layers * block


def _double_stream(config: NetworkConfig) -> int:
    D, M, E = config.feat_dim, config.mlp_dim, config.head_dim
    attention = _linear(D, 3 * D, config.qkv_bias) + 2 * E + _linear(D, D)
    return _linear(D, 6 * D) + attention + _linear(D, M) + _linear(M, D)


def _single(config: NetworkConfig) -> int:
    D, M, E = config.feat_dim, config.mlp_dim, config.head_dim
    return _linear(D, 3 * D) + _linear(D, 3 * D + M) + _linear(D + M, D) + 2 * E
