"""Floating-point operations of the network, counted from its shape: two a multiply-add.

Matrix products and attention only; norms, activations and rotary positions are left out, and masked
attention counts in full. Knows no tensors.

Letters: T text rows, B motion rows, N text tokens, L motion frames, D width, M MLP width.
"""

from __future__ import annotations

from hymotion_ray.config.network import NetworkConfig


def text_flops(config: NetworkConfig, num_rows: int, num_tokens: int) -> int:
    """Of one call of `text_stream` with T rows of N tokens."""
    D, M, N = config.feat_dim, config.mlp_dim, num_tokens
    time_mlp = 2 * 2 * D * D
    vector_mlp = 2 * (config.vtxt_input_dim * D + D * D)
    attention = 4 * N * N * D
    attention_layers = 2 * N * 4 * D * D + attention
    mlp = 2 * N * 2 * D * M

    refiner_block = 2 * D * 2 * D + attention_layers + mlp
    refiner = time_mlp + 2 * 2 * D * D + 2 * N * D * D + config.refiner_num_layers * refiner_block
    double = 2 * 2 * D * 6 * D + attention_layers + mlp
    single = 2 * D * 3 * D + attention_layers + mlp
    last = 2 * D * 3 * D + 2 * N * D * 2 * D
    modulations = 2 * D * 2 * D * (1 + config.with_long_skip_connection)
    row = (
        2 * N * config.ctxt_input_dim * D
        + refiner
        + time_mlp
        + vector_mlp
        + config.num_double_blocks * double
        + (config.num_single_blocks - 1) * single
        + last
        + modulations
    )
    return num_rows * row


def motion_flops(config: NetworkConfig, num_rows: int, num_frames: int, num_tokens: int) -> int:
    """Of one call of `motion_stream` with B rows of L frames that attend to N text tokens."""
    D, M = config.feat_dim, config.mlp_dim
    L = num_frames + config.insert_start_token
    block = 2 * L * 4 * D * D + 4 * L * (L + num_tokens) * D + 2 * L * 2 * D * M
    ends = 2 * 2 * num_frames * config.input_dim * D
    skip = 2 * L * D * D * config.with_long_skip_connection
    return num_rows * (config.num_layers * block + ends + skip)
