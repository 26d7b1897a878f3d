"""Tensor parallel: every process holds its share of the heads and of the MLPs' hidden units.

Column-split layers give each process the outputs of its own heads; row-split layers take these and
sum over processes. Source: Shoeybi et al., Megatron-LM (2019), section 3. Modulations are split by
output and joined, since the residual they act on is whole everywhere.

Torch's own `parallelize_module` is not used: the products here are fused (queries, keys, values and
MLP hidden units in one), which its contiguous shards would cut across.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hymotion_ray.config.fields import require
from hymotion_ray.model.linear import Linear, linear
from hymotion_ray.model.mmdit import MotionMMDiT
from hymotion_ray.model.split.wire import Wire


def split_heads(network: MotionMMDiT, wire: Wire) -> None:
    """Keep this process's share of `network`'s weights, and share out every block's work.

    The network must be whole, with the same weights on all processes, and is changed in place.
    Raises `ConfigError` where heads or hidden units cannot be divided.
    """
    config = network.config
    for name, number in (("num_heads", config.num_heads), ("mlp_dim", config.mlp_dim)):
        require(number % wire.size == 0, name, number, f"a multiple of the {wire.size} processes")
    D, M = config.feat_dim, config.mlp_dim
    for refiner in network.text_refiner.individual_token_refiner.blocks:
        refiner.self_attn_qkv = _columns(refiner.self_attn_qkv, (D, D, D), wire)
        _replace(refiner, "self_attn_proj", _SummedLinear(refiner.self_attn_proj, (D,), wire))
        refiner.mlp.fc1 = _columns(refiner.mlp.fc1, (M,), wire)
        _replace(refiner.mlp, "fc2", _SummedLinear(refiner.mlp.fc2, (M,), wire))
        _join_modulation(refiner.adaLN_modulation, wire)
        refiner.num_heads //= wire.size
    for double in network.double_blocks:
        for stream in ("motion", "text"):
            qkv, out = getattr(double, f"{stream}_qkv"), getattr(double, f"{stream}_out_proj")
            mlp = getattr(double, f"{stream}_mlp")
            _replace(double, f"{stream}_qkv", _columns(qkv, (D, D, D), wire))
            _replace(double, f"{stream}_out_proj", _SummedLinear(out, (D,), wire))
            mlp.fc1 = _columns(mlp.fc1, (M,), wire)
            _replace(mlp, "fc2", _SummedLinear(mlp.fc2, (M,), wire))
            _join_modulation(getattr(double, f"{stream}_mod"), wire)
        double.num_heads //= wire.size
    for single in network.single_blocks:
        single.linear1 = _columns(single.linear1, (D, D, D, M), wire)
        _replace(single, "linear2", _SummedLinear(single.linear2, (D, M), wire))
        _join_modulation(single.modulation, wire)
        single.num_heads //= wire.size
        single.dim //= wire.size
        single.split = (single.split[0] // wire.size, single.split[1] // wire.size)
    _join_modulation(network.final_layer.adaLN_modulation, wire)
    network.num_heads_here //= wire.size


class _SummedLinear(nn.Module):
    """Linear over inputs that are split over processes: partial products, summed."""

    def __init__(self, whole: nn.Linear, parts: Sequence[int], wire: Wire) -> None:
        super().__init__()
        index = _own(parts, wire).to(whole.weight.device)
        self.weight = nn.Parameter(whole.weight[:, index].clone(), requires_grad=False)
        self.bias = nn.Parameter(whole.bias.clone(), requires_grad=False)
        self.wire = wire

    def forward(self, x: Tensor) -> Tensor:
        """(..., own inputs) -> (..., out), the same on all processes."""
        return self.wire.sum(linear(x, self.weight, None)) + self.bias


class _JoinedLinear(nn.Module):
    """Linear whose outputs are split over processes, and joined."""

    def __init__(self, whole: nn.Linear, wire: Wire) -> None:
        super().__init__()
        own = _columns(whole, (whole.out_features,), wire)
        self.weight, self.bias, self.wire = own.weight, own.bias, wire

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), the same on all processes."""
        return self.wire.join(F.linear(x, self.weight, self.bias), dim=-1)


def _columns(whole: nn.Linear, parts: Sequence[int], wire: Wire) -> Linear:
    """The rows of the weight that make this process's share of each of the outputs' `parts`."""
    index = _own(parts, wire).to(whole.weight.device)
    own = Linear(
        whole.in_features,
        len(index),
        bias=whole.bias is not None,
        device=whole.weight.device,
        dtype=whole.weight.dtype,
    )
    own.weight = nn.Parameter(whole.weight[index].clone(), requires_grad=False)
    if whole.bias is not None:
        own.bias = nn.Parameter(whole.bias[index].clone(), requires_grad=False)
    return own


def _join_modulation(modulation: nn.Module, wire: Wire) -> None:
    _replace(modulation, "linear", _JoinedLinear(modulation.linear, wire))  # type: ignore[arg-type]


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Put `layer` in place of another kind of layer."""
    module._modules[name] = layer


def _own(parts: Sequence[int], wire: Wire) -> Tensor:
    """Which of sum(parts) units are this process's: its share of each part, in order."""
    found, start = [], 0
    for part in parts:
        share = part // wire.size
        found.append(torch.arange(share) + start + wire.rank * share)
        start += part
    return torch.cat(found)
