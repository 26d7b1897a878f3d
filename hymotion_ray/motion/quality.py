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
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d

from hymotion_ray.motion.columns import local_rotations, sole_columns
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import ANKLES, FEET, NUM_BODY_JOINTS, PELVIS

# `float` names a field below, so its annotations need another name for the type.
_Number = float
Array = NDArray[np.float64]

# Left ankle and toe, right ankle and toe; and what is neither.
_FEET = [ANKLES[0], FEET[0], ANKLES[1], FEET[1]]
_NO_FEET = [j for j in range(NUM_BODY_JOINTS) if j not in _FEET]

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
    body = motion.joints[:, :NUM_BODY_JOINTS].cpu().numpy().transpose(1, 2, 0).astype(np.float64)
    soles = sole_columns(body, motion.skeleton)
    floor = float(soles.min())
    skate, skate_speed = _skating(body[list(FEET)], floor, motion.fps)
    return Quality(
        skate=skate,
        skate_speed=skate_speed,
        float=_floating(body, soles - floor, floor, motion.fps),
        jitter=_jitter(body, motion.fps),
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


def _skating(toes: Array, floor: _Number, fps: _Number) -> tuple[_Number, _Number]:
    """Share of frame steps in which a toe slides, and the mean speed of toes near the floor.

    toes: (2, 3, L).
    """
    if toes.shape[-1] < 2:
        return 0.0, 0.0
    near = toes[:, 1] - floor < _TOE_NEAR
    near = near[:, 1:] & near[:, :-1]
    steps = np.diff(toes, axis=-1)
    speed = np.sqrt(np.square(steps[:, 0]) + np.square(steps[:, 2])) * fps
    window = max(1, round(_SLIDE_SECONDS * fps))
    lasting = uniform_filter1d(speed, window, axis=-1, mode="nearest")
    slides = near & (speed > _SLIDE_SPEED) & (lasting > _SLIDE_SPEED)
    mean_speed = float(speed[near].mean()) if near.any() else 0.0
    return float(slides.any(axis=0).mean()), mean_speed


def _floating(body: Array, soles: Array, floor: _Number, fps: _Number) -> _Number:
    """Share of frames in which neither a foot nor another part of the body bears it.

    body: (22, 3, L); soles: (2, L) heights above the floor.
    """
    steps = np.diff(body[_FEET], axis=-1)
    speed = np.sqrt(np.square(steps).sum(axis=1)) * fps  # (4, L - 1)
    speed = np.concatenate([speed, speed[:, -1:] if speed.size else np.zeros((4, 1))], axis=1)
    still = (speed < _STILL_SPEED).reshape(2, 2, -1).any(axis=1)
    by_foot = (soles < _SOLE_NEAR) | (still & (soles < _STILL_NEAR))
    by_body = body[_NO_FEET, 1].min(axis=0) - floor < _BODY_NEAR
    return float(1 - (by_foot.any(axis=0) | by_body).mean())


def _jitter(body: Array, fps: _Number) -> _Number:
    """Mean length of the third difference of joints (22, 3, L) over time, in 10 m/s^3; 0 under four
    frames.

    Taken at about 30 fps whatever the clip's rate: it grows with the rate's cube on noise.
    """
    stride = max(1, round(fps / _JITTER_FPS))
    body, fps = body[..., ::stride], fps / stride
    if body.shape[-1] < 4:
        return 0.0
    third = np.diff(body, n=3, axis=-1)
    return float(np.sqrt(np.square(third).sum(axis=1)).mean()) * fps**3 / 10


def _facing(motion: Motion) -> _Number | None:
    """Cosine of facing against travel, weighted by distance; None without travel."""
    pelvis = motion.joints[:, PELVIS].cpu().numpy().astype(np.float64)[:, [0, 2]].T
    stride = max(1, round(_SLIDE_SECONDS * motion.fps))
    if motion.num_frames <= stride:
        return None
    travel = pelvis[:, stride:] - pelvis[:, :-stride]
    distance = np.hypot(*travel)
    moving = distance * motion.fps / stride > _TRAVEL_SPEED
    metres = np.where(moving, distance, 0.0) / stride
    if metres.sum() < _TRAVEL_METRES:
        return None
    root = local_rotations(motion.rot6d[:, PELVIS : PELVIS + 1].cpu().numpy())[0]
    front = root[[0, 2], 2][:, stride // 2 : stride // 2 + travel.shape[1]]
    cosine = (front * travel).sum(axis=0) / np.maximum(np.hypot(*front) * distance, 1e-9)
    return float(np.clip((cosine * metres).sum() / metres.sum(), -1, 1))
