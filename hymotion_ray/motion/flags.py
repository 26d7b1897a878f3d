"""Words on clips that a person should look at: the length asked for does not suit the action.

An action that is over long before its clip leaves a figure that stands still; one that is cut off
leaves it in the air. Knows joints alone, not what was asked for.
"""

from __future__ import annotations

import torch

from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import JOINT_NAMES, NUM_BODY_JOINTS

_STILL_M_S, _MOVES_M_S = 0.05, 0.3
"""Speed of the fastest joint below which a frame is still, and above which something happens."""
_STILL_S, _STILL_SHARE = 2.0, 0.4
"""A clip ends long before its end when it is still for so many seconds and this share of it."""
_AIR_M = 0.15
"""Height of the lower foot above the lowest point of both over the clip."""
_FEET = [JOINT_NAMES.index(name) for name in ("L_Ankle", "R_Ankle", "L_Foot", "R_Foot")]


def flags(motion: Motion) -> tuple[str, ...]:
    """`still_at_end` and `ends_in_air`, where they apply; nothing for clips under two frames."""
    if motion.num_frames < 2:
        return ()
    found = []
    steps = motion.joints[1:, :NUM_BODY_JOINTS] - motion.joints[:-1, :NUM_BODY_JOINTS]
    speed = steps.norm(dim=-1).amax(dim=-1) * motion.fps
    moving = torch.nonzero(speed > _STILL_M_S)
    still = len(speed) - 1 - int(moving[-1]) if len(moving) else 0
    is_long = still >= max(_STILL_S * motion.fps, _STILL_SHARE * len(speed))
    if is_long and float(speed.max()) > _MOVES_M_S:
        found.append("still_at_end")
    heights = motion.joints[:, _FEET, 1].amin(dim=-1)
    if float(heights[-1] - heights.min()) > _AIR_M:
        found.append("ends_in_air")
    return tuple(found)
