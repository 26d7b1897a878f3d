"""Motions as SMPL-H poses: axis-angle of 52 joints, and the translation that SMPL bodies mean.

It knows the two axis conventions (Y up, ours; Z up, AMASS) and that a SMPL translation is not the
pelvis. It knows no files and no key names.

The pelvis rule: a SMPL-family body stands with its pelvis at `trans + J0`, J0 being its own rest
pelvis. So moving to another body or other axes goes through the pelvis' world position.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from hymotion_ray.errors import InputError
from hymotion_ray.motion.motion import Meta, Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d, matrix_to_rotvec, rotvec_to_matrix
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, NUM_JOINTS, PELVIS, Skeleton

NUM_POSE_NUMBERS: Final = 3 * NUM_JOINTS
"""Axis-angle numbers of one frame: 156."""

SMPL_PELVIS: Final = (-0.001795, -0.223333, 0.028219)
"""Rest pelvis of the neutral SMPL body in metres, for data of bodies whose own is not known."""

Up = Literal["y", "z"]

# Columns: where Z-up's x, y and z go in Y-up axes; a rotation (x, y, z) -> (x, z, -y).
_Y_UP_FROM_Z_UP: Final = ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0))

# The relaxed left hand that the reference tool writes into every npz, as axis-angle of index,
# middle, pinky, ring and thumb; the right hand is its mirror image.
_RELAXED_LEFT: Final = (
    *((0.1117, 0.0429, -0.4164), (0.1088, -0.066, -0.7562), (-0.0964, -0.0909, -0.1885)),
    *((-0.1181, 0.0509, -0.5296), (-0.1437, 0.0552, -0.7049), (-0.0192, -0.0923, -0.3379)),
    *((-0.457, -0.1963, -0.6255), (-0.2147, -0.066, -0.5069), (-0.3697, -0.0603, -0.0795)),
    *((-0.1419, -0.0859, -0.6355), (-0.3033, -0.0579, -0.6314), (-0.1761, -0.1321, -0.3734)),
    *((0.851, 0.2769, -0.0915), (-0.4998, 0.0266, 0.0529), (0.5356, 0.046, -0.2774)),
)


def relaxed_hands() -> np.ndarray:
    """Axis-angle (90,) float32 of both hands, half closed, as the reference tool writes them."""
    left = np.array(_RELAXED_LEFT, dtype=np.float32)
    return np.concatenate([left, left * np.array([1, -1, -1], np.float32)]).ravel()


def poses_of(motion: Motion, hands: np.ndarray | None = None) -> np.ndarray:
    """Axis-angle (L, 156) float32 in radians of a motion, Y up.

    hands: (90,) for every frame, such as `relaxed_hands()`; None: flat hands, zeros.
    """
    body = matrix_to_rotvec(motion.local_rotations()).flatten(1).numpy()
    poses = np.zeros((motion.num_frames, NUM_POSE_NUMBERS), dtype=np.float32)
    poses[:, : 3 * NUM_BODY_JOINTS] = body
    if hands is not None:
        poses[:, 3 * NUM_BODY_JOINTS :] = hands
    return poses


def rot6d_of_poses(poses: np.ndarray) -> Tensor:
    """Rotations (L, 22, 6) float32 of axis-angle poses (L, at least 66); what follows is ignored.

    Fits SMPL (72), SMPL-H (156) and SMPL-X (165): their first 22 joints are the same. InputError
    when the shape is another or a number is not finite.
    """
    poses = np.asarray(poses)
    if poses.ndim != 2 or poses.shape[1] < 3 * NUM_BODY_JOINTS or not np.isfinite(poses).all():
        raise InputError(
            f"poses have shape {poses.shape}, finite: {bool(np.isfinite(poses).all())}; allowed:"
            f" (frames, {3 * NUM_BODY_JOINTS} or more), all finite"
        )
    body = torch.tensor(poses[:, : 3 * NUM_BODY_JOINTS], dtype=torch.float64)
    return matrix_to_rot6d(rotvec_to_matrix(body.unflatten(1, (NUM_BODY_JOINTS, 3)))).float()


def to_smpl(
    motion: Motion,
    up: Up,
    pelvis: tuple[float, float, float] = SMPL_PELVIS,
    hands: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Poses (L, 156) and translation (L, 3), float32, that move a SMPL-H body as the motion goes.

    up: "z" for AMASS and tools that read it, "y" for the motion's own axes. pelvis: rest pelvis of
    the SMPL body that shall be moved. hands: as in `poses_of`.
    """
    poses = poses_of(motion, hands)
    place = motion.transl.double() + torch.tensor(motion.skeleton.rest[PELVIS]).double()
    if up == "z":
        back = torch.tensor(_Y_UP_FROM_Z_UP, dtype=torch.float64).mT
        root = back @ rotvec_to_matrix(torch.from_numpy(poses[:, :3]).double())
        poses[:, :3] = matrix_to_rotvec(root).float().numpy()
        place = place @ back.mT
    trans = place - torch.tensor(pelvis, dtype=torch.float64)
    return poses, trans.float().numpy()


def from_smpl(
    poses: np.ndarray,
    trans: np.ndarray,
    skeleton: Skeleton,
    fps: float,
    *,
    up: Up,
    pelvis: tuple[float, float, float] = SMPL_PELVIS,
    scale: float = 1.0,
    meta: Meta | None = None,
) -> Motion:
    """A motion of `skeleton` from SMPL-family poses (L, 66 or more) and translation (L, 3).

    up: the data's vertical axis. pelvis: rest pelvis of the data's body. scale: our leg length over
    the data's, so that steps fit the legs. The floor stays where the data had it: ground
    afterwards. InputError when lengths differ.
    """
    rot6d = rot6d_of_poses(poses)
    place = torch.tensor(np.asarray(trans), dtype=torch.float64)
    if tuple(place.shape) != (len(rot6d), 3) or not bool(place.isfinite().all()):
        raise InputError(
            f"translation has shape {tuple(place.shape)} beside {len(rot6d)} frames of poses;"
            f" allowed: finite ({len(rot6d)}, 3)"
        )
    place = place + torch.tensor(pelvis, dtype=torch.float64)
    if up == "z":
        turn = torch.tensor(_Y_UP_FROM_Z_UP, dtype=torch.float64)
        place = place @ turn.mT
        root = turn.float() @ rot6d[:, PELVIS].unflatten(-1, (3, 2))
        rot6d[:, PELVIS] = root.flatten(1)
    transl = place * scale - torch.tensor(skeleton.rest[PELVIS]).double()
    return Motion.from_rotations(rot6d, transl.float(), skeleton, fps, meta)
