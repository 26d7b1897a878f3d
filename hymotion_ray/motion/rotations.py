"""Rotations in other forms: rot6d, matrices, quaternions, axis-angle; change of frame rate.

It knows no joints and no bodies; the maths is roma's. Quaternions are x, y, z, w, as roma's and
scipy's.
"""

from __future__ import annotations

import roma
import torch
from torch import Tensor

from hymotion_ray.errors import InputError

# Below this the first or second column has no direction left; roma's own default divides by zero
# there.
_NO_LENGTH = 1e-12


def rot6d_to_matrix(rot6d: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) of interleaved rot6d (..., 6), by Gram-Schmidt on two columns.

    The six numbers, reshaped to (3, 2), are the first two columns; they need not be orthonormal.
    Input without two directions (zeros, or parallel columns) gives the identity instead of NaN.
    Source of the formula: Zhou et al. 2019, "On the Continuity of Rotation Representations", with
    the interleaved layout of the released models.
    """
    columns = rot6d.reshape(*rot6d.shape[:-1], 3, 2)
    matrix = roma.special_gramschmidt(columns, epsilon=_NO_LENGTH)
    lost = matrix.square().sum(dim=(-1, -2)) < 2.5
    if bool(lost.any()):
        identity = torch.eye(3, dtype=matrix.dtype, device=matrix.device)
        matrix = torch.where(lost[..., None, None], identity, matrix)
    return matrix


def matrix_to_rot6d(matrix: Tensor) -> Tensor:
    """Interleaved rot6d (..., 6) of rotation matrices (..., 3, 3): their first two columns."""
    return matrix[..., :2].reshape(*matrix.shape[:-2], 6)


def matrix_to_rotvec(matrix: Tensor) -> Tensor:
    """Axis-angle (..., 3) in radians of rotation matrices (..., 3, 3); angles from 0 to pi."""
    return roma.rotmat_to_rotvec(matrix)


def rotvec_to_matrix(rotvec: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) of axis-angle (..., 3) in radians."""
    return roma.rotvec_to_rotmat(rotvec)


def matrix_to_quat(matrix: Tensor) -> Tensor:
    """Unit quaternions (..., 4), x, y, z, w with w >= 0, of rotation matrices (..., 3, 3)."""
    quat = roma.rotmat_to_unitquat(matrix)
    return torch.where(quat[..., 3:] < 0, -quat, quat)


def quat_to_matrix(quat: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) of unit quaternions (..., 4), x, y, z, w."""
    return roma.unitquat_to_rotmat(quat)


def continuous_quats(quat: Tensor) -> Tensor:
    """The same rotations (L, ..., 4), each with the sign that is nearer to the frame before it.

    What exporters need: players that blend the four numbers would else turn the long way round.
    """
    flips = (quat[1:] * quat[:-1]).sum(dim=-1) < 0
    first = torch.zeros_like(quat[:1, ..., 0], dtype=torch.bool)
    signs = torch.cat([first, flips]).cumsum(dim=0) % 2
    return torch.where(signs[..., None] == 1, -quat, quat)


def yaw_matrix(angle: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) about +Y by `angle` (...,) radians; positive turns +Z to +X."""
    axis = torch.zeros(*angle.shape, 3, dtype=angle.dtype, device=angle.device)
    axis[..., 1] = angle
    return roma.rotvec_to_rotmat(axis)


def heading(matrix: Tensor) -> Tensor:
    """The yaw (...,) in radians that a body with orientation (..., 3, 3) faces; 0 faces +Z.

    The direction of the body's +Z axis over the floor. Where that axis points straight up or down
    (a lying body), the yaw of its +X axis, a quarter turn earlier, is taken.
    """
    front, left = matrix[..., :, 2], matrix[..., :, 0]
    by_front = torch.atan2(front[..., 0], front[..., 2])
    by_left = torch.atan2(-left[..., 2], left[..., 0])
    flat = front[..., 0].square() + front[..., 2].square() > 1e-2
    return torch.where(flat, by_front, by_left)


def resample(matrix: Tensor, transl: Tensor, fps: float, new_fps: float) -> tuple[Tensor, Tensor]:
    """Rotations (L, J, 3, 3) and translation (L, 3) of a clip at another frame rate.

    Resampled in time, from the first frame on, to the last one that the clip still reaches:
    rotations by slerp between the two neighbouring frames, translation linearly. InputError when a
    rate is not above zero.
    """
    if not (fps > 0 and new_fps > 0):
        raise InputError(f"frame rates are {fps} and {new_fps}; allowed: above 0")
    last = transl.shape[0] - 1
    # A hair of slack, so that 121 frames at 120 fps give 31 frames at 30 and not 30.
    num_frames = int(last / fps * new_fps + 1e-6) + 1
    position = torch.arange(num_frames, dtype=torch.float64) * (fps / new_fps)
    before = position.floor().clamp(max=max(last - 1, 0)).long()
    after = (before + 1).clamp(max=last)
    share = (position - before).clamp(0, 1).to(transl.dtype).to(transl.device)
    between = transl[before] + share[:, None] * (transl[after] - transl[before])
    quat = roma.rotmat_to_unitquat(matrix)
    step = quat[before] * torch.where(
        (quat[before] * quat[after]).sum(dim=-1, keepdim=True) < 0, -1.0, 1.0
    )
    turned = _slerp(step, quat[after], share[:, None, None])
    return roma.unitquat_to_rotmat(turned), between


def _slerp(start: Tensor, end: Tensor, share: Tensor) -> Tensor:
    """Rotations (L, J, 4) that lie `share` (L, 1, 1) of the way from `start` to `end`."""
    turn = roma.quat_product(roma.quat_conjugation(start), end)
    rotvec = roma.unitquat_to_rotvec(turn)
    return roma.quat_product(start, roma.rotvec_to_unitquat(share * rotvec))
