"""Sampling the reference way, with no saving at all: the yardstick of results and of speed.

Every clip is padded to the training window and to all tokens of the context, and the text half is
computed again for every row, step and branch. Knows no grid cells and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.flow.conditions import Conditions
from hymotion_ray.flow.guidance import (
    guidance_direction,
    guide,
    guide_apart,
    needs_null,
    sampling_steps,
)
from hymotion_ray.flow.network import Network
from hymotion_ray.flow.path import noise
from hymotion_ray.flow.plan import Row
from hymotion_ray.flow.solvers import Step, advance
from hymotion_ray.flow.work import Work


@torch.inference_mode()
def sample_dense(
    network: Network,
    conditions: Conditions,
    rows: Sequence[Row],
    sampling: SamplingConfig,
    rows_per_call: int,
    null_vector: Tensor,
    null_context: Tensor | None,
    work: Work,
    noise_device: torch.device,
) -> list[Tensor]:
    """Latents (num_frames, 201) fp32 on CPU, in the order of `rows`.

    `null_context` None: the null branch keeps the prompt's own context.
    """
    results = []
    for start in range(0, len(rows), rows_per_call):
        members = rows[start : start + rows_per_call]
        full = [*members, *[members[0]] * (rows_per_call - len(members))]
        x = _integrate(
            network, conditions, full, sampling, null_vector, null_context, work, noise_device
        )
        results += [x[i, : row.num_frames].cpu() for i, row in enumerate(members)]
    return results


def _integrate(
    network: Network,
    conditions: Conditions,
    rows: Sequence[Row],
    sampling: SamplingConfig,
    null_vector: Tensor,
    null_context: Tensor | None,
    work: Work,
    noise_device: torch.device,
) -> Tensor:
    device, num_frames = network.device, network.train_frames
    place = torch.tensor([r.prompt for r in rows], device=device)
    x_length = torch.tensor([r.num_frames for r in rows], device=device)
    context, vector = conditions.context[place], conditions.vector[place]
    length = conditions.length[place]
    guided = needs_null(sampling.guidance_scale)
    if guided:
        null = context if null_context is None else null_context.to(context).expand_as(context)
        context = torch.cat((context, null))
        vector = torch.cat((vector, null_vector.to(vector).expand_as(vector)))
        length, x_length = length.repeat(2), x_length.repeat(2)
    num_tokens = context.shape[1]
    layout = network.motion_layout(x_length, length, num_frames, num_tokens)
    direction: Tensor | None = None

    def velocity(step: Step, x_BLF: Tensor, t: float) -> Tensor:
        nonlocal direction
        x = x_BLF.repeat(2, 1, 1) if guided else x_BLF
        work.count_text(len(x), num_tokens)
        work.count_motion(len(x), num_frames, num_tokens)
        t_B = torch.full((len(x),), t, device=device)
        text = network.text_stream(context, vector, t_B, length)
        v = network.motion_stream(x, text, layout).float()
        if not guided:
            return v
        if not sampling.shortcuts:
            return guide(v, sampling.guidance_scale)
        v_text, v_null = v.chunk(2)
        uses = [step.null_use(t)] * len(v_text)
        direction = guidance_direction(uses, v_text - v_null, direction, v_text)
        return guide_apart(v_text, direction, sampling.guidance_scale)

    x = torch.stack([noise(row.seed, num_frames, noise_device) for row in rows]).to(device)
    for step in sampling_steps(sampling):
        x = advance(partial(velocity, step), x, step)
    return x
