"""Classifier-free guidance: two velocities and a scale, and when the second one is computed.

Exactly, it always is. Approximate modes leave it out at early and late times, or keep the direction
of guidance (text velocity minus null velocity) for some steps. Which step does what follows from
the settings alone, so that a clip stays a function of its row.

Sources: Ho & Salimans, Classifier-free diffusion guidance (2022), equation 6, in the form where
scale 1 is the conditional velocity itself; Kynkaanniemi et al., Applying guidance in a limited
interval (2024); Lyu et al., FasterCache (2024), section 3.3, which keeps a null branch likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.flow.solvers import NullUse, Step, solver_steps
from hymotion_ray.flow.upload import upload


def needs_null(scale: float) -> bool:
    """Whether the null branch is computed at all: only above scale 1."""
    return scale > 1.0


def guide(v_text_then_null: Tensor, scale: float | Tensor) -> Tensor:
    """`v_null + scale (v_text - v_null)` (B, L, 201), of both branches' velocities (2B, L, 201).

    A scale a row is a tensor (B, 1, 1).
    """
    v_text, v_null = v_text_then_null.chunk(2)
    return v_null + scale * (v_text - v_null)


def keeps_apart(sampling: SamplingConfig) -> bool:
    """Whether the branches are computed in calls of their own, as modes with shortcuts need."""
    return needs_null(sampling.guidance_scale) and bool(sampling.shortcuts)


def sampling_steps(sampling: SamplingConfig) -> list[Step]:
    """The solver steps of `sampling`, each with what it does about the null branch."""
    first, last = torch.tensor(sampling.guidance_interval, dtype=torch.float32).tolist()
    steps, num_guided = [], 0
    for step in solver_steps(sampling.method, sampling.num_steps):
        new_null = num_guided % sampling.null_every == 0
        steps.append(replace(step, guided=(first, last), new_null=new_null))
        num_guided += any(first <= t <= last for t in step.times)
    return steps


def guidance_direction(
    uses_B: Sequence[NullUse], new: Tensor | None, kept: Tensor | None, like: Tensor
) -> Tensor:
    """The direction of guidance (B, L, 201) of rows that each have a use of their own.

    `new` and `kept` may be None where no row wants them; `like` has their shape.
    """
    sources = {"new": new, "kept": kept}
    distinct = set(uses_B)
    if len(distinct) == 1 and (only := sources.get(uses_B[0])) is not None:
        return only
    direction = torch.zeros_like(like)
    for use in sorted(distinct - {"none"}):
        source = sources[use]
        assert source is not None, "a direction is kept before it is used"
        mask_B = upload([one == use for one in uses_B], torch.bool, like.device)
        direction = torch.where(mask_B[:, None, None], source, direction)
    return direction


def guide_apart(v_text: Tensor, direction: Tensor, scale: float | Tensor) -> Tensor:
    """`v_text + (scale - 1) direction` (B, L, 201): `guide`, where the direction is the new one."""
    return v_text + (scale - 1) * direction
