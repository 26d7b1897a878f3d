"""FBX: a skinned, animated figure in binary FBX 7.4, written without Autodesk's SDK.

Knows how a motion lies in FBX: centimetres, Y up, one limb node a joint with its rest offset, Euler
angles in degrees about X, Y, Z (applied in that order), linear keys. Prompt, seed, model and
licence stand as user properties of the pelvis. Is only written.

Shape letters: L frames, J joints, V vertices, F faces.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.formats.figures.mannequin import figure_of
from hymotion_ray.formats.motions.euler import unwrapped_zyx
from hymotion_ray.formats.motions.fbx_binary import (
    CREATION_TIME,
    FILE_ID,
    VERSION,
    Int64,
    Record,
    encode,
)
from hymotion_ray.formats.motions.fbx_figure import figure_objects
from hymotion_ray.formats.motions.fbx_scene import CM, Scene, model_properties, properties
from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import JOINT_NAMES, NUM_BODY_JOINTS, PARENTS, PELVIS

TICKS_PER_SECOND = 46186158000  # FBX's unit of time
_LINEAR = 4  # key flag: linear interpolation
_TIME_MODES = {120.0: 1, 100.0: 2, 60.0: 3, 50.0: 4, 48.0: 5, 30.0: 6, 24.0: 11, 25.0: 10}
_CUSTOM_TIME_MODE = 14


def write_fbx(motion: Motion, *, mesh: BodyMesh | None = None) -> bytes:
    """The file's bytes.

    mesh: the model's body; without it a mannequin is built on the motion's skeleton.
    """
    scene = Scene()
    joints = _joints(scene, motion)
    figure_objects(scene, figure_of(motion.skeleton, mesh), motion.skeleton, joints)
    _animation(scene, motion, joints)
    last = _ticks(motion, motion.num_frames - 1)
    return encode(
        [
            _header(),
            Record("FileId", [FILE_ID]),
            Record("CreationTime", [CREATION_TIME]),
            Record("Creator", ["hymotion-ray"]),
            _settings(motion.fps, last),
            *scene.records(),
            _takes(last),
        ]
    )


def _ticks(motion: Motion, frame: int) -> int:
    return round(frame * TICKS_PER_SECOND / motion.fps)


def _joints(scene: Scene, motion: Motion) -> list[int]:
    """Ids of the 22 limb nodes, in the rest pose."""
    ids: list[int] = []
    for joint, name in enumerate(JOINT_NAMES[:NUM_BODY_JOINTS]):
        place = [float(v) for v in motion.skeleton.offsets[joint].astype(np.float64) * CM]
        entries: list[Sequence[str | int | float]] = [
            ("Lcl Translation", "Lcl Translation", "", "A", *place),
            ("Lcl Rotation", "Lcl Rotation", "", "A", 0.0, 0.0, 0.0),
            ("Lcl Scaling", "Lcl Scaling", "", "A", 1.0, 1.0, 1.0),
        ]
        if joint == PELVIS:
            entries += [(key, "KString", "", "U", str(v)) for key, v in motion.meta.items()]
        model = scene.add(
            "Model", name, "LimbNode", [Record("Version", [232]), model_properties(entries)]
        )
        attribute = scene.add(
            "NodeAttribute", name, "LimbNode", [Record("TypeFlags", ["Skeleton"]), properties([])]
        )
        scene.connect(attribute, model)
        scene.connect(model, 0 if joint == PELVIS else ids[PARENTS[joint]])
        ids.append(model)
    return ids


def _animation(scene: Scene, motion: Motion, joints: list[int]) -> None:
    last = _ticks(motion, motion.num_frames - 1)
    span = [
        (name, "KTime", "Time", "", Int64(value))
        for name, value in (("LocalStart", 0), ("LocalStop", last))
    ]
    stack = scene.add("AnimationStack", "Motion", "", [properties(span)])
    layer = scene.add("AnimationLayer", "Motion", "", [properties([])])
    scene.connect(layer, stack)
    times = np.array([_ticks(motion, frame) for frame in range(motion.num_frames)], dtype=np.int64)
    angles = np.degrees(unwrapped_zyx(motion.local_rotations().numpy().astype(np.float64)))
    pelvis = motion.joints[:, PELVIS].numpy().astype(np.float64) * CM
    _curves(scene, layer, joints[PELVIS], "T", "Lcl Translation", times, pelvis)
    for joint, model in enumerate(joints):
        _curves(scene, layer, model, "R", "Lcl Rotation", times, angles[:, joint, ::-1])


def _curves(
    scene: Scene,
    layer: int,
    model: int,
    name: str,
    target: str,
    times: NDArray[np.int64],
    values: NDArray[np.float64],
) -> None:
    """Three curves of one property; values (L,3) for X, Y, Z."""
    start = [
        (f"d|{axis}", "Number", "", "A", float(v)) for axis, v in zip("XYZ", values[0], strict=True)
    ]
    node = scene.add("AnimationCurveNode", name, "", [properties(start)])
    scene.connect(node, layer)
    scene.connect(node, model, target)
    for axis, track in zip("XYZ", values.T, strict=True):
        curve = scene.add(
            "AnimationCurve",
            "",
            "",
            [
                Record("Default", [float(track[0])]),
                Record("KeyVer", [4008]),
                Record("KeyTime", [times]),
                Record("KeyValueFloat", [track.astype(np.float32)]),
                Record("KeyAttrFlags", [np.array([_LINEAR], dtype=np.int32)]),
                Record("KeyAttrDataFloat", [np.zeros(4, dtype=np.float32)]),
                Record("KeyAttrRefCount", [np.array([len(track)], dtype=np.int32)]),
            ],
        )
        scene.connect(curve, node, f"d|{axis}")


def _header() -> Record:
    return Record(
        "FBXHeaderExtension",
        [],
        [
            Record("FBXHeaderVersion", [1003]),
            Record("FBXVersion", [VERSION]),
            Record("EncryptionType", [0]),
            Record("Creator", ["hymotion-ray"]),
        ],
    )


def _settings(fps: float, last: int) -> Record:
    mode = _TIME_MODES.get(fps, _CUSTOM_TIME_MODE)
    entries: list[Sequence[str | int | float | Int64]] = [
        (name, "int", "Integer", "", value)
        for name, value in (
            ("UpAxis", 1), ("UpAxisSign", 1), ("FrontAxis", 2), ("FrontAxisSign", 1),
            ("CoordAxis", 0), ("CoordAxisSign", 1), ("OriginalUpAxis", 1),
            ("OriginalUpAxisSign", 1),
        )
    ]  # fmt: skip
    entries += [
        ("UnitScaleFactor", "double", "Number", "", 1.0),
        ("OriginalUnitScaleFactor", "double", "Number", "", 1.0),
        ("TimeMode", "enum", "", "", mode),
        ("TimeSpanStart", "KTime", "Time", "", Int64(0)),
        ("TimeSpanStop", "KTime", "Time", "", Int64(last)),
        ("CustomFrameRate", "double", "Number", "", fps if mode == _CUSTOM_TIME_MODE else -1.0),
    ]
    return Record("GlobalSettings", [], [Record("Version", [1000]), properties(entries)])


def _takes(last: int) -> Record:
    take = Record(
        "Take",
        ["Motion"],
        [
            Record("FileName", ["Motion.tak"]),
            Record("LocalTime", [Int64(0), Int64(last)]),
            Record("ReferenceTime", [Int64(0), Int64(last)]),
        ],
    )
    return Record("Takes", [], [Record("Current", ["Motion"]), take])
