"""GLB: one skinned, animated figure in a binary glTF 2.0 file, and the way back.

Knows how a motion lies in glTF: metres, Y up, +Z forward (as ours), one node a joint, one rotation
track a joint and one translation track for the pelvis, linear, quaternions x, y, z, w of continuous
sign. Prompt, seed, model and licence stand in the extras of the asset and of the scene. Does not
read other people's glTF files.

Shape letters: L frames, J joints, V vertices, F faces.
"""

from __future__ import annotations

import json
import struct

import numpy as np
import pygltflib as gltf
import torch
from numpy.typing import NDArray

from hymotion_ray.errors import InputError, OutputError
from hymotion_ray.formats.figures.figure import TONE_COLOURS, Figure
from hymotion_ray.formats.figures.mannequin import figure_of
from hymotion_ray.formats.figures.tracks import rotation_tracks
from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.rotations import matrix_to_rot6d, quat_to_matrix
from hymotion_ray.motion.skeleton import (
    JOINT_NAMES,
    NUM_BODY_JOINTS,
    NUM_JOINTS,
    PARENTS,
    PELVIS,
    Skeleton,
)

SCHEMA_VERSION = 1
_FIRST_JOINT_NODE = 1  # node 0 carries the mesh
_COMPONENTS = {
    np.dtype(np.float32): gltf.FLOAT,
    np.dtype(np.uint8): gltf.UNSIGNED_BYTE,
    np.dtype(np.uint16): gltf.UNSIGNED_SHORT,
    np.dtype(np.uint32): gltf.UNSIGNED_INT,
}
_TYPES = {1: gltf.SCALAR, 3: gltf.VEC3, 4: gltf.VEC4, 16: gltf.MAT4}
_MAX_JSON = 64 << 20


class _Binary:
    """Collects arrays as accessors of one buffer, four-byte aligned."""

    def __init__(self) -> None:
        self.blob = bytearray()
        self.views: list[gltf.BufferView] = []
        self.accessors: list[gltf.Accessor] = []

    def add(
        self,
        array: NDArray[np.generic],
        target: int | None = None,
        bounds: bool = False,
        normalized: bool = False,
    ) -> int:
        """Index of the accessor of an array (N,) or (N,width)."""
        data = np.ascontiguousarray(array)
        self.views.append(
            gltf.BufferView(
                buffer=0, byteOffset=len(self.blob), byteLength=data.nbytes, target=target
            )
        )
        self.blob += data.tobytes() + b"\0" * (-data.nbytes % 4)
        table = data.reshape(len(data), -1)
        self.accessors.append(
            gltf.Accessor(
                bufferView=len(self.views) - 1,
                componentType=_COMPONENTS[data.dtype],
                count=len(data),
                type=_TYPES[table.shape[1]],
                normalized=normalized or None,
                min=table.min(axis=0).tolist() if bounds else None,
                max=table.max(axis=0).tolist() if bounds else None,
            )
        )
        return len(self.accessors) - 1


def write_glb(
    motion: Motion, *, mesh: BodyMesh | None = None, num_joints: int = NUM_BODY_JOINTS
) -> bytes:
    """The file's bytes; the same motion gives the same bytes.

    mesh: the model's body; without it a mannequin is built on the motion's skeleton. num_joints:
    22, or 52 for a rig with (unmoving) fingers.
    """
    if num_joints not in (NUM_BODY_JOINTS, NUM_JOINTS):
        raise OutputError(f"glb option num_joints is {num_joints}; allowed: 22, 52")
    binary = _Binary()
    figure = figure_of(motion.skeleton, mesh)
    primitive = _primitive(binary, figure)
    bind = np.repeat(np.eye(4, dtype=np.float32)[None], num_joints, axis=0)
    bind[:, 3, :3] = -motion.skeleton.rest[:num_joints]  # column-major: translation in the last row
    joints = [_FIRST_JOINT_NODE + joint for joint in range(num_joints)]
    skin = gltf.Skin(
        inverseBindMatrices=binary.add(bind.reshape(-1, 16)),
        joints=joints,
        skeleton=_FIRST_JOINT_NODE,
        name="Skeleton",
    )
    origin = _origin(motion)
    document = gltf.GLTF2(
        asset=gltf.Asset(version="2.0", generator="hymotion-ray", extras=origin),
        scene=0,
        scenes=[gltf.Scene(nodes=[0, _FIRST_JOINT_NODE], name="Motion", extras=origin)],
        nodes=[gltf.Node(name="Figure", mesh=0, skin=0), *_joint_nodes(motion, num_joints)],
        meshes=[gltf.Mesh(name="Figure", primitives=[primitive])],
        materials=[_material()],
        skins=[skin],
        animations=[_animation(binary, motion)],
    )
    document.bufferViews, document.accessors = binary.views, binary.accessors
    document.buffers = [gltf.Buffer(byteLength=len(binary.blob))]
    document.set_binary_blob(bytes(binary.blob))
    return b"".join(document.save_to_bytes())


def read_glb(content: bytes, name: str = "glb") -> Motion:
    """A motion from the bytes of one of our files; `InputError` for others and for damaged ones."""
    document, blob = _parse(content, name)
    extras = document.get("asset", {}).get("extras", {})
    try:
        own = extras["hymotion"]
        version, fps, rest = (
            int(own["schema"]),
            float(own["fps"]),
            np.array(own["rest"], dtype=np.float32),
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise InputError(
            f"{name}: not a GLB written by hymotion-ray; other figures come in through"
            " `hymotion-ray ingest`"
        ) from cause
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{name}: schema version {version}; this version reads 1..{SCHEMA_VERSION}"
        )
    skeleton = Skeleton(rest)
    quats, pelvis = _tracks(document, blob, name)
    rot6d = matrix_to_rot6d(quat_to_matrix(torch.from_numpy(quats)))
    transl = torch.from_numpy(pelvis - skeleton.rest[PELVIS])
    meta = {key: value for key, value in extras.items() if isinstance(value, str | int | float)}
    return Motion.from_rotations(rot6d, transl, skeleton, fps, meta)


# --- writing --------------------------------------------------------------------------------------


def _origin(motion: Motion) -> dict[str, object]:
    own = {
        "schema": SCHEMA_VERSION,
        "fps": motion.fps,
        "rest": np.round(motion.skeleton.rest.astype(np.float64), 7).tolist(),
    }
    return {**motion.meta, "hymotion": own}


def _primitive(binary: _Binary, figure: Figure) -> gltf.Primitive:
    colours = (np.array(TONE_COLOURS) / 255) ** 2.2  # glTF vertex colours are linear
    linear = np.concatenate([np.round(255 * colours), np.full((len(colours), 1), 255)], axis=1)
    index_type = np.uint16 if len(figure.vertices) < 65535 else np.uint32
    attributes = gltf.Attributes(
        POSITION=binary.add(figure.vertices, gltf.ARRAY_BUFFER, bounds=True),
        NORMAL=binary.add(figure.normals, gltf.ARRAY_BUFFER),
        COLOR_0=binary.add(
            linear.astype(np.uint8)[figure.tones], gltf.ARRAY_BUFFER, normalized=True
        ),
        JOINTS_0=binary.add(figure.skin_indices, gltf.ARRAY_BUFFER),
        WEIGHTS_0=binary.add(figure.skin_weights, gltf.ARRAY_BUFFER),
    )
    indices = binary.add(figure.faces.astype(index_type).reshape(-1), gltf.ELEMENT_ARRAY_BUFFER)
    return gltf.Primitive(attributes=attributes, indices=indices, material=0)


def _material() -> gltf.Material:
    surface = gltf.PbrMetallicRoughness(
        baseColorFactor=[1.0, 1.0, 1.0, 1.0], metallicFactor=0.0, roughnessFactor=0.7
    )
    # pygltflib's own default for a material's alpha cut-off is only legal in MASK mode.
    return gltf.Material(name="Figure", pbrMetallicRoughness=surface, alphaCutoff=None)


def _joint_nodes(motion: Motion, num_joints: int) -> list[gltf.Node]:
    """Joints as nodes in the first frame's pose, so that a still viewer shows how it starts."""
    quats, pelvis = rotation_tracks(motion)[0], motion.joints[0, PELVIS].numpy()
    nodes = []
    for joint in range(num_joints):
        children = [
            _FIRST_JOINT_NODE + child for child in range(num_joints) if PARENTS[child] == joint
        ]
        place = pelvis if joint == PELVIS else motion.skeleton.offsets[joint]
        nodes.append(
            gltf.Node(
                name=JOINT_NAMES[joint],
                translation=place.astype(float).tolist(),
                rotation=quats[joint].astype(float).tolist() if joint < NUM_BODY_JOINTS else None,
                children=children,
            )
        )
    return nodes


def _animation(binary: _Binary, motion: Motion) -> gltf.Animation:
    times = (np.arange(motion.num_frames) / motion.fps).astype(np.float32)
    clock = binary.add(times, bounds=True)
    quats = rotation_tracks(motion)
    tracks = [(PELVIS, "translation", motion.joints[:, PELVIS].numpy().astype(np.float32))]
    tracks += [(joint, "rotation", quats[:, joint]) for joint in range(NUM_BODY_JOINTS)]
    animation = gltf.Animation(name="Motion")
    for joint, path, values in tracks:
        sampler = gltf.AnimationSampler(
            input=clock, output=binary.add(values), interpolation=gltf.ANIM_LINEAR
        )
        animation.samplers.append(sampler)
        target = gltf.AnimationChannelTarget(node=_FIRST_JOINT_NODE + joint, path=path)
        animation.channels.append(
            gltf.AnimationChannel(sampler=len(animation.samplers) - 1, target=target)
        )
    return animation


# --- reading --------------------------------------------------------------------------------------


def _parse(content: bytes, name: str) -> tuple[dict, bytes]:
    """The JSON document and the binary chunk of a GLB (Khronos glTF 2.0, section 4.4)."""
    if len(content) < 20 or content[:4] != b"glTF":
        raise InputError(f"{name}: not a GLB file")
    json_length, json_type = struct.unpack_from("<I4s", content, 12)
    end = 20 + json_length
    if json_type != b"JSON" or json_length > _MAX_JSON or end + 8 > len(content):
        raise InputError(f"{name}: a damaged GLB: its JSON chunk does not fit into the file")
    blob_length, blob_type = struct.unpack_from("<I4s", content, end)
    blob = content[end + 8 : end + 8 + blob_length]
    if blob_type != b"BIN\0" or len(blob) != blob_length:
        raise InputError(f"{name}: a damaged GLB: its binary chunk does not fit into the file")
    try:
        document = json.loads(content[20:end])
    except (ValueError, RecursionError) as cause:
        raise InputError(f"{name}: a damaged GLB: its JSON cannot be read") from cause
    if not isinstance(document, dict):
        raise InputError(f"{name}: a damaged GLB: its JSON is not an object")
    return document, blob


def _tracks(
    document: dict, blob: bytes, name: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Quaternions (L,22,4) and the pelvis (L,3) of the animation."""
    names = list(JOINT_NAMES[:NUM_BODY_JOINTS])
    found: dict[tuple[str, str], NDArray[np.float32]] = {}
    try:
        animation = document["animations"][0]
        for channel in animation["channels"]:
            target = channel["target"]
            node = document["nodes"][target["node"]]["name"]
            accessor = document["accessors"][animation["samplers"][channel["sampler"]]["output"]]
            found[node, target["path"]] = _floats(document, blob, accessor)
        pelvis = found[names[PELVIS], "translation"]
        quats = np.stack([found[joint, "rotation"] for joint in names], axis=1)
    except (KeyError, IndexError, TypeError, ValueError) as cause:
        raise InputError(
            f"{name}: a damaged GLB: its animation cannot be read ({cause})"
        ) from cause
    fits = pelvis.shape[1:] == (3,) and quats.shape == (len(pelvis), NUM_BODY_JOINTS, 4)
    if not fits or not np.isfinite(pelvis).all() or not np.isfinite(quats).all():
        raise InputError(f"{name}: its animation has odd shapes or numbers that are not finite")
    length = np.linalg.norm(quats, axis=-1, keepdims=True)
    if np.abs(length - 1).max() > 1e-2:
        raise InputError(f"{name}: its rotations are not unit quaternions")
    return (quats / length).astype(np.float32), pelvis


def _floats(document: dict, blob: bytes, accessor: dict) -> NDArray[np.float32]:
    view = document["bufferViews"][accessor["bufferView"]]
    width = {"VEC3": 3, "VEC4": 4}[accessor["type"]]
    start, count = int(view.get("byteOffset", 0)), int(accessor["count"])
    if accessor["componentType"] != gltf.FLOAT or start < 0 or count < 1:
        raise ValueError("tracks must be float32")
    return np.frombuffer(blob, dtype="<f4", count=count * width, offset=start).reshape(count, width)
