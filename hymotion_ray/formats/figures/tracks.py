"""What animation formats store of a motion: quaternions that players can blend. Knows no format."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import continuous_quats, matrix_to_quat


def rotation_tracks(motion: Motion) -> NDArray[np.float32]:
    """Local rotations (L,22,4) f4 as unit quaternions x, y, z, w.

    Each has the sign that is nearer to the frame before, so that blending takes the short way.
    """
    quats = continuous_quats(matrix_to_quat(motion.local_rotations().double()))
    return quats.numpy().astype(np.float32)
