"""A motion: rotations, translation and joints of one body over time.

It knows how the three fit together, and no files, latents or meshes.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hymotion_ray.errors import InputError
from hymotion_ray.motion.kinematics import forward_kinematics
from hymotion_ray.motion.rotations import rot6d_to_matrix
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, NUM_JOINTS, Skeleton

Meta = dict[str, str | int | float]
MAX_FPS = 1000
"""Frames a second that formats carry; motion capture reaches a few hundred."""


@dataclass(frozen=True, eq=False)
class Motion:
    """One clip: Y up, +Z the front of a body at rest, +X its left; metres.

    Raises InputError when shapes do not fit together.
    """

    rot6d: Tensor
    """Local rotations (L, 22, 6) float32, two interleaved columns each, not always orthonormal."""
    transl: Tensor
    """Translation (L, 3) float32: the pelvis is at `skeleton.rest[0] + transl`."""
    joints: Tensor
    """World positions (L, 52, 3) float32, translation included."""
    fps: float
    """Frames a second."""
    skeleton: Skeleton
    """The body that the joints belong to."""
    meta: Meta = field(default_factory=dict)
    """What else is known: prompt, seed, model, licence. Texts are UTF-8, numbers are finite."""

    def __post_init__(self) -> None:
        num_frames = self.transl.shape[0]
        expected = {
            "rot6d": (self.rot6d, (num_frames, NUM_BODY_JOINTS, 6)),
            "transl": (self.transl, (num_frames, 3)),
            "joints": (self.joints, (num_frames, NUM_JOINTS, 3)),
        }
        for name, (tensor, shape) in expected.items():
            if tuple(tensor.shape) != shape or num_frames < 1:
                raise InputError(
                    f"a motion's {name} has shape {tuple(tensor.shape)}; allowed: {shape} with at"
                    " least one frame"
                )
        if not 0 < self.fps <= MAX_FPS:
            raise InputError(f"a motion's fps is {self.fps}; allowed: above 0, at most {MAX_FPS}")
        object.__setattr__(self, "meta", _plain_meta(self.meta))

    @classmethod
    def from_rotations(
        cls,
        rot6d: Tensor,
        transl: Tensor,
        skeleton: Skeleton,
        fps: float,
        meta: Meta | None = None,
    ) -> Motion:
        """A motion from rotations (L, 22, 6) and translation (L, 3), joints by kinematics."""
        rot6d = torch.as_tensor(rot6d, dtype=torch.float32)
        transl = torch.as_tensor(transl, dtype=torch.float32)
        shapes = (tuple(rot6d.shape), tuple(transl.shape))
        if shapes != ((len(transl), NUM_BODY_JOINTS, 6), (len(transl), 3)):
            raise InputError(
                f"rot6d and translation have shapes {shapes[0]} and {shapes[1]}; allowed: (frames,"
                f" {NUM_BODY_JOINTS}, 6) and (frames, 3)"
            )
        _, posed = forward_kinematics(rot6d_to_matrix(rot6d), skeleton)
        joints = posed + transl[:, None]
        return cls(rot6d, transl, joints, float(fps), skeleton, dict(meta or {}))

    @property
    def num_frames(self) -> int:
        """Frames of the clip."""
        return int(self.transl.shape[0])

    @property
    def duration(self) -> float:
        """Length in seconds: frames over frame rate."""
        return self.num_frames / self.fps

    def local_rotations(self) -> Tensor:
        """Rotation matrices (L, 22, 3, 3) of each joint against its parent."""
        return rot6d_to_matrix(self.rot6d)

    def global_rotations(self) -> Tensor:
        """Rotation matrices (L, 22, 3, 3) of each joint in world axes."""
        return forward_kinematics(self.local_rotations(), self.skeleton)[0]


def _plain_meta(meta: Mapping[str, object]) -> Meta:
    """`meta` as every format can carry it: JSON, UTF-8 and named properties."""
    plain: Meta = {}
    for key, value in meta.items():
        if isinstance(value, numbers.Real) and not isinstance(value, (int, float)):
            value = int(value) if isinstance(value, numbers.Integral) else float(value)
        if not isinstance(key, str) or not key or not isinstance(value, (str, int, float)):
            raise InputError(
                f"a motion's meta has {key!r:.60} of {type(value).__name__}; allowed: names with "
                "texts or numbers"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"a motion's meta {key!r:.60} is {value}; allowed: finite numbers")
        if not (key + str(value)).isascii():
            _check_utf8(key, str(value))
        plain[key] = value
    return plain


def _check_utf8(key: str, text: str) -> None:
    try:
        (key + text).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"a motion's meta {key!r:.60} holds half of a surrogate pair; allowed: UTF-8 text"
        ) from error
