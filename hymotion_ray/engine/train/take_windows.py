"""Windows of takes: turned to face +Z from x = z = 0, and captions in other words.

Shapes: B windows, L frames.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

_SUBJECTS = (
    "a person", "the person", "someone", "somebody", "a man", "a woman", "the man", "he", "she",
    "the figure", "a character", "a human",
)  # fmt: skip
_SETTINGS = (
    "in the park", "across the room", "on the street", "in a large hall", "calmly", "slowly",
    "at a steady pace", "while looking ahead", "on a sunny day", "with great care", "once more",
    "in the gym", "without stopping", "then stands still", "over and over",
)  # fmt: skip


def hip_heading(features: Tensor) -> Tensor:
    """The yaw (...,) in radians that bodies (..., 201) face, by the line from hip to hip.

    As `motion.rotations.heading` for a body that stands; clear also for one that crawls or lies.
    """
    return torch.atan2(-features[..., 7], features[..., 3])


def canonical(x_BLF: Tensor, facing_B: Tensor) -> Tensor:
    """Windows turned by -facing about Y and moved so that their first frame has x = z = 0.

    x (B,L,201) un-normalised features of a skeleton whose rest pelvis lies on the Y axis; facing
    (B,) radians, 0 facing +Z and positive towards +X.
    """
    cosine, sine = facing_B.cos(), facing_B.sin()
    zero, one = torch.zeros_like(cosine), torch.ones_like(cosine)
    rows = [cosine, zero, -sine, zero, one, zero, sine, zero, cosine]
    turn_B33 = torch.stack(rows, dim=-1).unflatten(-1, (3, 3))
    start_B1F = x_BLF[:, :1, :3] * x_BLF.new_tensor([1.0, 0.0, 1.0])
    transl = torch.einsum("bij,blj->bli", turn_B33, x_BLF[..., :3] - start_B1F)
    columns = x_BLF[..., 3:9].unflatten(-1, (3, 2))
    root = torch.einsum("bij,bljk->blik", turn_B33, columns).flatten(-2)
    places = torch.einsum("bij,blkj->blki", turn_B33, x_BLF[..., 135:].unflatten(-1, (-1, 3)))
    return torch.cat([transl, root, x_BLF[..., 9:135], places.flatten(-2)], dim=-1)


def vary(text: str, draw: random.Random) -> str:
    """A caption with another subject, and sometimes one word less or a setting that says little.

    The settings make long prompts usual, so that words beside the action matter little.
    """
    if text.startswith("a person "):
        text = draw.choice(_SUBJECTS) + text.removeprefix("a person")
    words = text.split()
    if len(words) > 4 and draw.random() < 0.3:
        del words[draw.randrange(len(words))]
    for _ in range(draw.choice((0, 0, 0, 1, 2))):
        words.append(draw.choice(_SETTINGS))
    return " ".join(words)
