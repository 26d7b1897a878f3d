"""Kimodo's npz files: world rotations and positions of the SOMA skeleton, Y up, 30 frames a second.

Knows the 30 joints of SOMA in their order, as its documentation lists them. The 77-joint layout is
named and refused; its SMPL-X form (`*_amass.npz`) is read as AMASS.

Shape letters: L frames, J joints.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.arrays import NpzFile
from hymotion_ray.formats.sources.clip import SourceClip
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.rig import Rig

FPS = 30.0
_TREE = (
    ("Hips", ""), ("Spine1", "Hips"), ("Spine2", "Spine1"), ("Chest", "Spine2"),
    ("Neck1", "Chest"), ("Neck2", "Neck1"), ("Head", "Neck2"), ("Jaw", "Head"),
    ("LeftEye", "Head"), ("RightEye", "Head"),
    *(
        (f"{side}{joint}", f"{side}{parent}" if parent != "Chest" else parent)
        for side in ("Left", "Right")
        for joint, parent in (
            ("Shoulder", "Chest"), ("Arm", "Shoulder"), ("ForeArm", "Arm"), ("Hand", "ForeArm"),
            ("HandThumbEnd", "Hand"), ("HandMiddleEnd", "Hand"),
        )
    ),
    *(
        (f"{side}{joint}", f"{side}{parent}" if parent != "Hips" else parent)
        for side in ("Left", "Right")
        for joint, parent in (
            ("Leg", "Hips"), ("Shin", "Leg"), ("Foot", "Shin"), ("ToeBase", "Foot"),
        )
    ),
)  # fmt: skip
NAMES = tuple(name for name, _ in _TREE)
PARENTS = tuple(NAMES.index(parent) if parent else -1 for _, parent in _TREE)


def read_kimodo(file: SourceFile, arrays: NpzFile) -> Iterator[SourceClip]:
    """The one clip of a file with `posed_joints` and `global_rot_mats`."""
    shape = arrays.read("posed_joints").shape
    if len(shape) != 3 or shape[1] != len(NAMES):
        raise SourceError(
            f"`posed_joints` has shape {shape}; only SOMA's {len(NAMES)} joints are known, write"
            " BVH or the SMPL-X npz from Kimodo for others",
            "unknown_skeleton",
        )
    positions = arrays.finite("posed_joints", (None, len(NAMES), 3))
    rotations = arrays.finite("global_rot_mats", (len(positions), len(NAMES), 3, 3))
    if np.abs(np.linalg.det(rotations) - 1).max() > 1e-2:
        raise SourceError("`global_rot_mats` holds matrices that are no rotations", "bad_rotation")
    rig = Rig(names=NAMES, parents=PARENTS, rotations=rotations, positions=positions, fps=FPS)
    yield rig.to_clip(
        file.name,
        source="Kimodo",
        licence="Kimodo output, see NVIDIA's model licence",
        unit_m=1.0,
        up="+y",
    )
