"""What of a network is trained: all, parts named by patterns, or low-rank adapters beside it.

Adapters are peft's (LoRA: Hu et al., LoRA: low-rank adaptation of large language models, 2021).
Knows names and adapters. Does not know optimizers or processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.errors import ConfigError, MissingDependencyError
from hymotion_ray.model.blocks import DoubleBlock, SingleBlock
from hymotion_ray.model.layers import Modulation
from hymotion_ray.model.mmdit import MotionMMDiT

NETWORK = "network."
"""Prefix that patterns may leave out: the network's own, where it lies in a larger module."""
_BASE, _DOWN, _UP = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"
DOWN, UP = ".lora_A", ".lora_B"
"""Ends of adapters' names in a state, after the name of their layer."""


def choose_trained(network: nn.Module, config: ParallelConfig) -> None:
    """Freeze what is not trained, and add adapters where `config` asks for them; in place.

    With adapters the patterns choose the layers that get one. Raises `ConfigError` for a pattern
    that names nothing.
    """
    if config.lora_rank:
        _add_adapters(network, config)
        return
    names = [name for name, _ in network.named_parameters()]
    wanted = _matching(names, config.trainable, "parameter")
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in wanted and parameter.requires_grad)


def own_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names they would have without peft, adapters beside them."""
    return {
        name.replace(_BASE, ".").replace(_DOWN, DOWN).replace(_UP, UP): tensor
        for name, tensor in tensors.items()
    }


def merge(state: Mapping[str, Tensor], config: ParallelConfig) -> dict[str, Tensor]:
    """A state of `own_names` with its adapters added to the weights beside them, and gone."""
    merged = {name: tensor for name, tensor in state.items() if not name.endswith((DOWN, UP))}
    scale = config.lora_alpha / max(1, config.lora_rank)
    for name in [name for name in state if name.endswith(DOWN)]:
        layer = name.removesuffix(DOWN)
        product = state[layer + UP].float() @ state[name].float()
        merged[layer + ".weight"] = state[layer + ".weight"] + scale * product
    return merged


def _add_adapters(network: nn.Module, config: ParallelConfig) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingDependencyError(
            "lora_rank needs the package peft; install it with: pip install 'hymotion-ray[train]'"
        ) from error
    layers = adapted_layers(network)
    wanted = _matching([f"{name}.weight" for name in layers], config.trainable, "adapted layer")
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=[name.removesuffix(".weight") for name in wanted],
    )
    network.requires_grad_(False)
    inject_adapter_in_model(lora, network)


def adapted_layers(network: nn.Module) -> list[str]:
    """Names of the linear layers in blocks that may get an adapter, modulations left out.

    The last single block's `linear1` is left out too: its text half reads rows of the weight
    instead of calling the layer, and would not see the adapter.
    """
    sliced = {
        id(part.single_blocks[-1].linear1)
        for part in network.modules()
        if isinstance(part, MotionMMDiT)
    }
    names = []
    for block_name, block in network.named_modules():
        if not isinstance(block, (DoubleBlock, SingleBlock)):
            continue
        inner = [
            m for part in block.children() if isinstance(part, Modulation) for m in part.modules()
        ]
        left_out = sliced | {id(module) for module in inner}
        names += [
            f"{block_name}.{name}" if block_name else name
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear) and id(module) not in left_out
        ]
    return names


def _matching(names: Iterable[str], patterns: Iterable[str], what: str) -> set[str]:
    names = list(names)
    found: set[str] = set()
    for pattern in patterns:
        hits = {n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, NETWORK + pattern)}
        if not hits:
            raise ConfigError(
                f"trainable has the pattern {pattern!r}, which names no {what}; allowed: patterns "
                f"of names such as {names[0]!r}"
            )
        found |= hits
    return found


def num_trained(network: nn.Module) -> tuple[int, int]:
    """Numbers that are trained, and numbers in all."""
    sizes = [(p.numel(), p.requires_grad) for p in network.parameters()]
    return sum(n for n, trained in sizes if trained), sum(n for n, _ in sizes)
