"""Does a clip show an action? Judged by what the body does: travel, airtime, hand height, turn.

Knows a clip's statistics and one test an action; no text and no learned judge. The tests are rough
and can be fooled; they tell actions from one another, which is why each is printed beside chance.
Heights and lengths are metres on a body of about 1.7 m, above the clip's own floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hymotion_ray.motion.ground import sole_heights
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import ANKLES, JOINT_NAMES, PELVIS, WRISTS

_HEAD = JOINT_NAMES.index("Head")
_SHOULDERS = [JOINT_NAMES.index("L_Shoulder"), JOINT_NAMES.index("R_Shoulder")]
_ELBOWS = [JOINT_NAMES.index("L_Elbow"), JOINT_NAMES.index("R_Elbow")]
AIR_METRES, AIR_QUANTILE = 0.06, 0.25
"""A body is in the air while both soles are this much higher than in this share of its frames: one
frame with a toe in the floor must not make the rest of the clip fly."""
_OVER_ELBOW, _UNDER_SHOULDER = 0.08, 0.2
_SWING_METRES = 0.05
"""How far a raised hand goes before its turning back is a swing."""
_SEAT_HEIGHT, _TRUNK_HEIGHT = 0.68, 0.35
"""A body sits while its pelvis is lower than this, its head so far above the pelvis."""
_SEAT_SPEED = 0.3


@dataclass(frozen=True)
class Statistics:
    """What one clip does. Metres, seconds, degrees; heights above the clip's floor."""

    forward: float
    """Travel along where the body faces at the start."""
    air: float
    """Time with both feet in the air."""
    foot: float
    """Highest ankle."""
    hand: float
    """Lowest wrist."""
    reach: float
    """Farthest that a wrist is from the pelvis over the floor."""
    out: float
    """Mean distance of the wrists from the pelvis over the floor."""
    arms: float
    """Mean speed of the wrists against the pelvis, m/s."""
    head_low: float
    head_start: float
    head_end: float
    head_mean: float
    tilt: float
    """Smallest cosine between the pelvis's up axis and the vertical: -1 upside down."""
    turn: float
    """Net turn, left positive."""
    turned: float
    """Turns added up, whichever way."""
    raised: float
    """Time with one hand up: its wrist above its elbow and no lower than a little under the
    shoulder. Of the hand that is up longer."""
    swings: float
    """Times that this hand turns back after 5 cm or more while it is up."""
    seated: float
    """Time with a low pelvis, an upright trunk and little travel."""
    sway: float
    """Distance in metres between the extremes of where the pelvis goes over the floor."""


STATISTIC_NAMES = tuple(field.name for field in fields(Statistics))


def statistics(motion: Motion) -> Statistics:
    """The statistics of one clip."""
    joints = motion.joints.double()
    soles = sole_heights(joints, motion.skeleton)
    joints = joints - torch.tensor([0.0, float(soles.amin()), 0.0])
    lowest = soles.amin(dim=1)
    in_air = lowest - lowest.quantile(AIR_QUANTILE) > AIR_METRES
    root = rot6d_to_matrix(motion.rot6d[:, PELVIS]).double()
    facing = _facing(root)
    ahead = torch.tensor([np.sin(facing[0]), 0.0, np.cos(facing[0])])
    hands = joints[:, WRISTS] - joints[:, PELVIS, None]
    spans = hands[..., [0, 2]].norm(dim=-1)
    head = joints[:, _HEAD, 1]
    raised, swings = _waving(joints, motion.fps)
    floor_path = joints[:, PELVIS][:, [0, 2]]
    return Statistics(
        forward=float((joints[-1, PELVIS] - joints[0, PELVIS]) @ ahead),
        air=float(in_air.double().sum()) / motion.fps,
        foot=float(joints[:, ANKLES, 1].amax()),
        hand=float(joints[:, WRISTS, 1].amin()),
        reach=float(spans.amax()),
        out=float(spans.mean()),
        arms=_mean_speed(hands, motion.fps),
        head_low=float(head.amin()),
        head_start=float(head[0]),
        head_end=float(head[-1]),
        head_mean=float(head.mean()),
        tilt=float(root[:, 1, 1].amin()),
        turn=float(np.degrees(facing[-1] - facing[0])),
        turned=float(np.degrees(np.abs(np.diff(facing)).sum())),
        raised=raised,
        swings=swings,
        seated=_seated(joints, motion.fps),
        sway=float((floor_path.amax(dim=0) - floor_path.amin(dim=0)).norm()),
    )


def _facing(root: Tensor) -> NDArray[np.float64]:
    """Yaw over time in radians, +Z is 0, by the line from hip to hip: clear also when lying."""
    return np.unwrap(torch.atan2(-root[:, 2, 0], root[:, 0, 0]).numpy())


def _mean_speed(points: Tensor, fps: float) -> float:
    if len(points) < 2:
        return 0.0
    return float(points.diff(dim=0).norm(dim=-1).mean()) * fps


def _waving(joints: Tensor, fps: float) -> tuple[float, float]:
    """Seconds that a hand is up, and how often it turns back meanwhile; of the one longer up."""
    hands = (joints[:, WRISTS] - joints[:, _SHOULDERS]).numpy()
    over_elbows = (joints[:, WRISTS, 1] - joints[:, _ELBOWS, 1]).numpy()
    up = (over_elbows > _OVER_ELBOW) & (hands[..., 1] > -_UNDER_SHOULDER)
    side = int(up.sum(axis=0).argmax())
    path = hands[up[:, side], side]
    if len(path) < 3:
        return len(path) / fps, 0.0
    # Along the direction that the hand moves in most.
    apart = path - path.mean(axis=0)
    _, vectors = np.linalg.eigh(apart.T @ apart)
    return len(path) / fps, float(_turning_points(apart @ vectors[:, -1]))


def _turning_points(along: NDArray[np.float64]) -> int:
    """How often a path goes back by 5 cm and more from where it was farthest."""
    low = high = along[0]
    direction, count = 0, 0
    for place in along[1:]:
        low, high = min(low, place), max(high, place)
        if direction >= 0 and high - place > _SWING_METRES:
            count += direction > 0
            direction, low = -1, place
            high = place
        elif direction <= 0 and place - low > _SWING_METRES:
            count += direction < 0
            direction, high = 1, place
            low = place
    return count


def _seated(joints: Tensor, fps: float) -> float:
    pelvis, head = joints[:, PELVIS, 1], joints[:, _HEAD, 1]
    low = (pelvis < _SEAT_HEIGHT) & (head - pelvis > _TRUNK_HEIGHT)
    if len(joints) > 1:
        steps = joints[:, PELVIS][:, [0, 2]].diff(dim=0).norm(dim=-1) * fps
        low &= torch.cat([steps[:1], steps]) < _SEAT_SPEED
    return float(low.double().sum()) / fps


Test = Callable[[Statistics], bool]

ACTIONS: dict[str, tuple[str, Test]] = {
    "walk": (
        "goes forward 2 to 8 m, upright, arms down, less than 0.2 s in the air",
        lambda s: 2 < s.forward < 8 and s.air < 0.2 and s.head_mean > 1.4 and s.out < 0.55,
    ),
    "jump": (
        "is 0.2 s or more in the air, tilted at most 60 degrees, without spinning or kicking",
        lambda s: (
            s.air >= 0.2
            and s.tilt > 0.5
            and s.forward < 6
            and s.turned < 300
            and s.foot < 0.9
            and s.arms < 1.2
        ),
    ),
    "run": ("goes forward 10 m or more", lambda s: s.forward > 10),
    "jog": ("goes forward 8 to 16 m", lambda s: 8 < s.forward < 16),
    "kick": (
        "has an ankle above 0.9 m, is not upside down and less than 0.5 s in the air",
        lambda s: s.foot > 0.9 and s.tilt > -0.3 and s.air < 0.5,
    ),
    "punch": (
        "has a wrist 0.75 m away, feet on the floor, arms not swinging all the time",
        lambda s: s.reach > 0.75 and s.foot < 0.7 and s.air < 0.2 and s.tilt > 0.5 and s.arms < 1.5,
    ),
    "wave": (
        "holds a hand up for 0.7 s and swings it back twice or more, standing in one place",
        lambda s: s.raised > 0.7 and s.swings >= 2 and s.sway < 1 and s.foot < 0.5 and s.air < 0.2,
    ),
    "sit": (
        "has its pelvis below 0.68 m, head up and in one place, for half a second",
        lambda s: s.seated > 0.5 and s.tilt > 0.2 and s.air < 0.2,
    ),
    "spin": (
        "lies level in the air and turns by 300 degrees",
        lambda s: s.air > 0.2 and -0.5 < s.tilt < 0.3 and s.turned > 300 and s.hand > 0.15,
    ),
    "spinkick": (
        "has an ankle above 1 m, turns by 300 degrees, upright, 0.1 s in the air",
        lambda s: s.foot > 1.0 and s.turned > 300 and s.air > 0.1 and s.tilt > 0.2,
    ),
    "backflip": (
        "is upside down in the air, hands free, and lands behind its start",
        lambda s: s.tilt < -0.5 and s.air > 0.2 and s.hand > 0.15 and s.forward < -0.2,
    ),
    "cartwheel": (
        "is upside down with a wrist near the floor and an ankle above 1 m",
        lambda s: s.tilt < -0.3 and s.hand < 0.2 and s.foot > 1.0,
    ),
    "crawl": (
        "keeps its head below 0.8 m on average and at the end",
        lambda s: s.head_mean < 0.8 and s.head_end < 0.8,
    ),
    "dance": (
        "moves its wrists at 1.2 m/s, upright, without kicks, and stays within 3 m ahead",
        lambda s: s.arms > 1.2 and s.tilt > 0.5 and abs(s.forward) < 3 and s.foot < 0.9,
    ),
    "roll": (
        "is upside down with its head below 0.5 m, after standing",
        lambda s: s.tilt < -0.2 and s.head_low < 0.5 and s.head_start > 1.0,
    ),
    "getup": (
        "has its head below 0.8 m first and above 1.2 m last",
        lambda s: s.head_start < 0.8 and s.head_end > 1.2,
    ),
    "stealthy": (
        "crouches (head at 1.1 to 1.42 m on average), arms quiet, and goes less than 4 m",
        lambda s: 1.1 < s.head_mean < 1.42 and s.arms < 0.7 and abs(s.forward) < 4,
    ),
    "zombie": (
        "holds its wrists 0.55 m out on average and goes forward 1 to 5 m, arms quiet",
        lambda s: s.out > 0.55 and 1 < s.forward < 5 and s.head_low > 1.1 and s.arms < 1.0,
    ),
    "turn_left": (
        "turns left by 30 degrees or more, upright, arms down",
        lambda s: s.turn > 30 and s.tilt > 0.7 and s.arms < 1.2 and s.out < 0.55,
    ),
    "turn_right": (
        "turns right likewise",
        lambda s: s.turn < -30 and s.tilt > 0.7 and s.arms < 1.2 and s.out < 0.55,
    ),
}
"""What a clip of an action must do, in words and as a test, for clips of about 5 s."""
