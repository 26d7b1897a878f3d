"""Prompts as the sampler wants them: checked, on the network's device, padded to one token count.

Knows no times and no rows.

Shapes: P prompts, N text tokens, C context width, V vector width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hymotion_ray.errors import ConfigError
from hymotion_ray.flow.network import Network
from hymotion_ray.flow.upload import send, upload


@dataclass(frozen=True)
class Conditions:
    """The text features of several prompts, in the network's dtype on its device."""

    context: Tensor
    """(P, N, C); whatever lies past a prompt's length is ignored."""
    vector: Tensor
    """(P, 1, V)."""
    length: Tensor
    """(P,) int64, each from 1 to N."""

    def __len__(self) -> int:
        return len(self.length)

    def select(self, prompts: Sequence[int], num_tokens: int) -> Conditions:
        """Those prompts, cropped or zero-padded to `num_tokens` tokens."""
        place = upload(prompts, torch.int64, self.length.device)
        context = self.context[place, :num_tokens]
        context = F.pad(context, (0, 0, 0, num_tokens - context.shape[1]))
        return Conditions(context, self.vector[place], self.length[place])

    def with_null_vectors(self, null_vector: Tensor) -> Conditions:
        """The prompts, and then the same prompts under `null_vector` (1, 1, V)."""
        null = null_vector.to(self.vector).expand_as(self.vector)
        return Conditions(
            self.context.repeat(2, 1, 1),
            torch.cat((self.vector, null)),
            self.length.repeat(2),
        )


def null_condition(null_vector: Tensor, null_context: Tensor, network: Network) -> Conditions:
    """The learned null text as one prompt of one token."""
    one = torch.ones(1, dtype=torch.int64, device=network.device)
    context = null_context.reshape(1, 1, -1).to(network.device, network.dtype)
    vector = null_vector.reshape(1, 1, -1).to(network.device, network.dtype)
    return Conditions(context, vector, one)


def prepare_conditions(
    context: Tensor,
    vector: Tensor,
    context_length: Tensor,
    null: Conditions,
    network: Network,
) -> Conditions:
    """Check shapes and lengths; a prompt of length 0 gets the context of `null` as its only token.

    Raises `ConfigError` for shapes that fit neither each other nor `null`, and lengths outside 0
    to N.
    """
    num_prompts = len(context_length)
    shapes_fit = context.ndim == 3 and len(context) == num_prompts
    if not shapes_fit or vector.shape[:2] != (num_prompts, 1) or context_length.ndim != 1:
        raise ConfigError(
            f"condition has context {tuple(context.shape)}, vector {tuple(vector.shape)} and "
            f"length {tuple(context_length.shape)}; allowed: (P, N, C), (P, 1, V) and (P,) of one P"
        )
    for name, features, expected in (
        ("context", context, null.context),
        ("vector", vector, null.vector),
    ):
        if features.shape[-1] != expected.shape[-1]:
            raise ConfigError(
                f"condition has {name} features {features.shape[-1]} wide; allowed: "
                f"{expected.shape[-1]}, the width that this network was trained with"
            )
    num_tokens = context.shape[1]
    for prompt, length in enumerate(context_length.tolist()):
        if not 0 <= length <= num_tokens:
            raise ConfigError(
                f"prompt {prompt} has context length {length}; allowed: 0 to {num_tokens}, the "
                "tokens of its context"
            )
    context = send(context.to(network.dtype), network.device)
    length = send(context_length.to(torch.int64), network.device)
    if num_tokens == 0:
        context = F.pad(context, (0, 0, 0, 1))
    empty_P = length == 0
    first_token = torch.where(empty_P[:, None], null.context[:, 0], context[:, 0])
    context = torch.cat((first_token[:, None], context[:, 1:]), dim=1)
    vector = send(vector.to(network.dtype), network.device)
    return Conditions(context, vector, length.clamp(min=1))
