"""Euler angles for animation curves. Knows one order, which BVH (ZYX) and FBX (XYZ) share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
_POLE = 1e-7


def unwrapped_zyx(matrices: Doubles) -> Doubles:
    """Angles (L,...,3) about Z, Y, X in radians, without jumps of a turn along the frames.

    matrices: (L,...,3,3) with R = Rz Ry Rx. At the pole (Y at 90 degrees) only Z and X together are
    known: X is zero there, where scipy would warn.
    """
    sine = np.clip(-matrices[..., 2, 0], -1, 1)
    pole = np.hypot(matrices[..., 0, 0], matrices[..., 1, 0]) < _POLE
    z = np.where(
        pole,
        np.arctan2(-matrices[..., 0, 1], matrices[..., 1, 1]),
        np.arctan2(matrices[..., 1, 0], matrices[..., 0, 0]),
    )
    x = np.where(pole, 0.0, np.arctan2(matrices[..., 2, 1], matrices[..., 2, 2]))
    return np.unwrap(np.stack([z, np.arcsin(sine), x], axis=-1), axis=0)
