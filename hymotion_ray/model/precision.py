"""Which number format a device computes the network in, and why.

bfloat16 keeps the range of float32 and is the format of choice where matrix units have it. float16
overflows when products are accumulated in it, so on older cards it is storage only: products
accumulate in float32, and results must be checked (`Sampler.sample` does) and redone in float32
where they are not finite.

float8 is the format of matrix products alone, and an approximate mode: weights and activations
around them are bfloat16. Nothing takes it unasked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from hymotion_ray.config.sampling import Precision
from hymotion_ray.errors import ConfigError

PrecisionName = Literal["float32", "bfloat16", "float16", "float8"]
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.bfloat16,
}
_FLOAT8_CAPABILITY = (8, 9)


@dataclass(frozen=True)
class PrecisionChoice:
    """A number format, and the reason for it in words."""

    name: PrecisionName
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of weights and activations."""
        return _DTYPES[self.name]


def choose_precision(
    requested: Precision, device_type: str, capability: tuple[int, int] | None = None
) -> PrecisionChoice:
    """The format for a device, given its type and, for cuda, its compute capability.

    Raises `ConfigError` where the requested format is one that the device cannot compute in.
    """
    if requested == "float32":
        return PrecisionChoice("float32", "asked for")
    if requested == "float8" and (capability is None or capability < _FLOAT8_CAPABILITY):
        found = (
            f"a {device_type} device"
            if capability is None
            else f"a card of compute capability {capability[0]}.{capability[1]}"
        )
        raise ConfigError(
            f"precision is 'float8' on {found}; allowed on cards from 8.9 on (Ada, Hopper), whose "
            "matrix units have it; take auto, bfloat16 or float32"
        )
    if device_type != "cuda" or capability is None:
        if requested == "auto":
            return PrecisionChoice("float32", f"a {device_type} device computes in float32")
        return PrecisionChoice(requested, "asked for")
    card = f"compute capability {capability[0]}.{capability[1]}"
    if requested == "bfloat16" and capability < (8, 0):
        raise ConfigError(
            f"precision is 'bfloat16' on a card of {card}; allowed from 8.0 on; take auto, float16 "
            "or float32"
        )
    if requested != "auto":
        return PrecisionChoice(requested, "asked for")
    if capability >= (8, 0):
        return PrecisionChoice("bfloat16", f"{card} has bfloat16 matrix units")
    if capability >= (7, 0):
        return PrecisionChoice(
            "float16", f"{card} has float16 matrix units and no bfloat16; sums stay in float32"
        )
    return PrecisionChoice("float32", f"{card} has no matrix units")


def device_precision(requested: Precision, device: torch.device) -> PrecisionChoice:
    """`choose_precision` for a device of this machine."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return choose_precision(requested, device.type, capability)


def set_precision(network: nn.Module, choice: PrecisionChoice) -> None:
    """Store `network` in the chosen format, and forbid sums in float16 in this process."""
    network.to(choice.dtype)
    if choice.name == "float16":
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
