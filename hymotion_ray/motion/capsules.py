"""Does a body cut into itself? Limbs and trunk as capsules, pair by pair.

Knows rough thicknesses of an adult and which parts are not neighbours. It is no mesh test: hands on
hips and crossed legs touch, so only what goes in deeper than a few centimetres counts.

Shape letters: L frames, P pairs.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.motion.skeleton import JOINT_NAMES

Array = NDArray[np.float64]

_DEPTH = 0.04
"""Metres that two parts may press into each other."""
# Part: both ends and radius in metres. The radii are ours: rough halves of an adult's breadths, on
# the thin side.
_PARTS = {
    "trunk": ("Spine1", "Spine3", 0.10),
    "head": ("Head", "Head", 0.08),
    **{
        f"{side} {part}": (f"{side}_{a}", f"{side}_{b}", radius)
        for side in "LR"
        for part, a, b, radius in (
            ("thigh", "Hip", "Knee", 0.065),
            ("shin", "Knee", "Ankle", 0.045),
            ("forearm", "Elbow", "Wrist", 0.035),
        )
    },
}
_NEIGHBOURS = {
    *(frozenset((f"{s} thigh", f"{s} shin")) for s in "LR"),
    *(frozenset((f"{s} thigh", "trunk")) for s in "LR"),
    frozenset(("L thigh", "R thigh")),  # side by side at the hips, at rest already
    frozenset(("head", "trunk")),
}
_PAIRS = [pair for pair in combinations(_PARTS, 2) if frozenset(pair) not in _NEIGHBOURS]


def overlap_share(body: Array) -> float:
    """Share of frames of joints (L, 22, 3) in which two parts are over 4 cm inside each other."""
    starts = {name: body[:, JOINT_NAMES.index(a)] for name, (a, _, _) in _PARTS.items()}
    stops = {name: body[:, JOINT_NAMES.index(b)] for name, (_, b, _) in _PARTS.items()}
    first, second = zip(*_PAIRS, strict=True)
    distance = segment_distance(
        *(
            np.stack([ends[n] for n in names], axis=1)
            for names in (first, second)
            for ends in (starts, stops)
        )
    )
    radii = np.array([_PARTS[a][2] + _PARTS[b][2] for a, b in _PAIRS])
    return float((distance < radii - _DEPTH).any(axis=1).mean())


def segment_distance(a0: Array, a1: Array, b0: Array, b1: Array) -> Array:
    """Shortest distances (...) between segments a0-a1 and b0-b1, each (..., 3).

    Closest points of two segments after Ericson, "Real-Time Collision Detection" (2005), 5.1.9: the
    lines' closest points, moved to the nearest ends; a segment may be a point.
    """
    u, v, w = a1 - a0, b1 - b0, a0 - b0
    a, b, c = (np.einsum("...i,...i", x, y) for x, y in ((u, u), (u, v), (v, v)))
    d, e = (np.einsum("...i,...i", x, w) for x in (u, v))
    tiny = 1e-12
    s = np.clip((b * e - c * d) / np.maximum(a * c - b * b, tiny), 0, 1)
    t = np.clip((b * s + e) / np.maximum(c, tiny), 0, 1)
    s = np.clip((b * t - d) / np.maximum(a, tiny), 0, 1)
    gap = w + s[..., None] * u - t[..., None] * v
    distance: Array = np.sqrt(np.square(gap).sum(axis=-1))
    return distance
