"""Clips that end long before or in the middle of their action are named."""

from __future__ import annotations

import torch

from hymotion_ray.motion.flags import flags
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import generic_skeleton


def clip(transl: torch.Tensor) -> Motion:
    """The rest pose moved about by `transl` (L, 3)."""
    skeleton = generic_skeleton()
    rest = torch.tensor(skeleton.rest)
    rot6d = torch.tensor([1.0, 0, 0, 1, 0, 0]).expand(len(transl), 22, 6)
    return Motion(rot6d, transl, rest + transl[:, None], 30, skeleton, {})


def walk(num_frames: int, still_from: int | None = None) -> torch.Tensor:
    """A metre a second along z, until it stops."""
    steps = torch.full((num_frames,), 1 / 30)
    if still_from is not None:
        steps[still_from:] = 0
    transl = torch.zeros(num_frames, 3)
    transl[:, 2] = steps.cumsum(0)
    return transl


def test_a_figure_that_stands_still_for_long_at_the_end_is_named() -> None:
    assert flags(clip(walk(300, still_from=90))) == ("still_at_end",)
    assert flags(clip(walk(300))) == ()
    assert flags(clip(walk(300, still_from=250))) == ()
    assert flags(clip(torch.zeros(300, 3))) == ()  # asked to stand, perhaps: nothing was over
    assert flags(clip(walk(1))) == ()


def test_a_figure_in_the_air_at_the_end_is_named() -> None:
    jump = walk(30)
    jump[:, 1] = torch.linspace(0, 0.4, 30)
    assert flags(clip(jump)) == ("ends_in_air",)
    jump[:, 1] = 0.4 * torch.sin(torch.linspace(0, torch.pi, 30))
    assert flags(clip(jump)) == ()
