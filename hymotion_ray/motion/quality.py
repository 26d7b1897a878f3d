"""How well a clip moves, from its joints alone: sliding, floating, jitter, facing against travel.

It knows no reference motion, no text and no learned judge. Speeds are in m/s, so that one threshold
holds at every frame rate; heights are above the clip's own lowest sole, so that lifting or
turning a whole clip changes nothing. Numbers are for comparing clips, not for certifying one: a run
leaves the floor, and a prompt may ask for walking backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import uniform_filter1d

from hymotion_ray.motion.ground import sole_heights
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import ANKLES, FEET, NUM_BODY_JOINTS, PELVIS

# `float` names a field below, so its annotations need another name for the type.
_Number = float

# Sliding, from Karunratanakul et al. 2023 (guided motion diffusion): toe under 5 cm, over 0.5 m/s
# now and over a quarter second (five frames at their 20 fps).
_TOE_NEAR = 0.05
_SLIDE_SPEED = 0.5
_SLIDE_SECONDS = 0.25
# Support, after the MBench physical metrics: a foot within 2 cm of the lowest, or still (1 cm a
# frame at 20 fps). Ours: a still foot high up holds nobody, and a body may rest on other parts than
# feet.
_SOLE_NEAR = 0.05
_STILL_SPEED = 0.2
_STILL_NEAR = 0.10
_BODY_NEAR = 0.12
_JITTER_FPS = 30
# Travel: slower than this the direction is sway, and less than this distance is no travel at all.
_TRAVEL_SPEED = 0.3
_TRAVEL_METRES = 0.3
# What one point of `score` costs, and from where on a flag is set; chosen by us after 25 clips of
# the DeepMimic set at 30 fps: walks have no sliding and jitter of 12 to 24, flips and kicks to 120.
_POINT_SKATE, _POINT_SKATE_SPEED, _POINT_FLOAT, _POINT_JITTER = 0.1, 0.5, 0.25, 20.0
_FLAG_SKATE, _FLAG_FLOAT, _FLAG_JITTER, _FLAG_FACING = 0.2, 0.6, 150.0, -0.5


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Four judgements of one clip, and the sliding speed beside them."""

    skate: _Number
    """Share of frames, 0 to 1, in which a toe near the floor slides."""
    skate_speed: _Number
    """Mean horizontal speed in m/s of toes near the floor (after Kimodo's foot skate)."""
    float: _Number
    """Share of frames, 0 to 1, in which nothing supports the body."""
    jitter: _Number
    """Mean third difference of the 22 body joints over time, in 10 m/s^3 (as human mesh recovery
    benchmarks print it)."""
    facing: _Number | None
    """Cosine between where the pelvis faces and where it travels, 1 forwards, -1 backwards, meant
    over the distance travelled. None where the clip stays in place."""

    @property
    def flags(self) -> tuple[str, ...]:
        """What a viewer should be warned of: slides, floats, jitters, backwards."""
        raised = {
            "slides": self.skate > _FLAG_SKATE,
            "floats": self.float > _FLAG_FLOAT,
            "jitters": self.jitter > _FLAG_JITTER,
            "backwards": self.facing is not None and self.facing < _FLAG_FACING,
        }
        return tuple(name for name, is_raised in raised.items() if is_raised)


def measure(motion: Motion) -> Quality:
    """The quality of one clip of any length; one frame alone has neither speed nor jitter."""
    joints = motion.joints.double()
    soles = sole_heights(joints, motion.skeleton)
    floor = soles.amin()
    skate, skate_speed = _skating(joints, floor, motion.fps)
    return Quality(
        skate=skate,
        skate_speed=skate_speed,
        float=_floating(joints, soles - floor, floor, motion.fps),
        jitter=_jitter(joints[:, :NUM_BODY_JOINTS], motion.fps),
        facing=_facing(motion),
    )


def score(quality: Quality, *, may_go_backwards: bool = False) -> float:
    """One number to rank seeds of a prompt by; 0 is perfect, lower is better.

    The sum of sliding, floating, jitter and wrong facing, each divided by an amount that a viewer
    notices. may_go_backwards: leave facing out, for prompts that ask for it.
    """
    points = (
        quality.skate / _POINT_SKATE
        + quality.skate_speed / _POINT_SKATE_SPEED
        + quality.float / _POINT_FLOAT
        + quality.jitter / _POINT_JITTER
    )
    if quality.facing is not None and not may_go_backwards:
        points += 1 - quality.facing
    return points


def rank(qualities: Sequence[Quality], *, may_go_backwards: bool = False) -> list[int]:
    """Numbers of the clips, best first; equal ones keep their order."""
    scores = [score(quality, may_go_backwards=may_go_backwards) for quality in qualities]
    return sorted(range(len(scores)), key=scores.__getitem__)


def _skating(joints: torch.Tensor, floor: torch.Tensor, fps: float) -> tuple[float, float]:
    """Share of frame steps in which a toe slides, and the mean speed of toes near the floor."""
    toes = joints[:, FEET]
    if len(toes) < 2:
        return 0.0, 0.0
    near = toes[..., 1] - floor < _TOE_NEAR
    near = near[1:] & near[:-1]
    speed = toes[..., [0, 2]].diff(dim=0).norm(dim=-1) * fps
    window = max(1, round(_SLIDE_SECONDS * fps))
    lasting = torch.from_numpy(uniform_filter1d(speed.numpy(), window, axis=0, mode="nearest"))
    slides = near & (speed > _SLIDE_SPEED) & (lasting > _SLIDE_SPEED)
    mean_speed = float(speed[near].mean()) if bool(near.any()) else 0.0
    return float(slides.any(dim=1).double().mean()), mean_speed


def _floating(joints: torch.Tensor, soles: torch.Tensor, floor: torch.Tensor, fps: float) -> float:
    """Share of frames in which neither a foot nor another part of the body bears it.

    joints: (L, 52, 3); soles: (L, 2) heights above the floor.
    """
    feet = joints[:, [*ANKLES, *FEET]]
    steps = feet.diff(dim=0).norm(dim=-1) * fps
    speed = torch.cat([steps, steps[-1:]]) if len(steps) else torch.zeros(1, 4)
    still = (speed < _STILL_SPEED).unflatten(1, (2, 2)).any(dim=1)
    by_foot = (soles < _SOLE_NEAR) | (still & (soles < _STILL_NEAR))
    others = [j for j in range(NUM_BODY_JOINTS) if j not in (*ANKLES, *FEET)]
    by_body = (joints[:, others, 1] - floor < _BODY_NEAR).any(dim=1)
    return float((~(by_foot.any(dim=1) | by_body)).double().mean())


def _jitter(joints: torch.Tensor, fps: float) -> float:
    """Mean length of the third difference over time, in 10 m/s^3; 0 under four frames.

    Taken at about 30 fps whatever the clip's rate: it grows with the rate's cube on noise.
    """
    stride = max(1, round(fps / _JITTER_FPS))
    joints, fps = joints[::stride], fps / stride
    if len(joints) < 4:
        return 0.0
    return float(joints.diff(n=3, dim=0).norm(dim=-1).mean()) * fps**3 / 10


def _facing(motion: Motion) -> float | None:
    """Cosine of facing against travel, weighted by distance; None without travel."""
    pelvis = motion.joints[:, PELVIS].double()[:, [0, 2]]
    stride = max(1, round(_SLIDE_SECONDS * motion.fps))
    if len(pelvis) <= stride:
        return None
    travel = pelvis[stride:] - pelvis[:-stride]
    distance = travel.norm(dim=-1)
    front = rot6d_to_matrix(motion.rot6d[:, PELVIS].double())[:, [0, 2], 2]
    front = front[stride // 2 : stride // 2 + len(travel)]
    cosine = (front * travel).sum(dim=-1) / (front.norm(dim=-1) * distance).clamp(min=1e-9)
    moving = distance * motion.fps / stride > _TRAVEL_SPEED
    metres = torch.where(moving, distance, 0.0) / stride
    if float(metres.sum()) < _TRAVEL_METRES:
        return None
    return float(np.clip(float((cosine * metres).sum() / metres.sum()), -1, 1))
