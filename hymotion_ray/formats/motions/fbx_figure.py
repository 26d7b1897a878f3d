"""The figure of an FBX scene: mesh, materials, skin and bind pose.

Knows how a skinned mesh lies in FBX. Does not know animation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.formats.figures.figure import TONE_COLOURS, TONE_NAMES, Figure
from hymotion_ray.formats.motions.fbx_binary import Int64, Record
from hymotion_ray.formats.motions.fbx_scene import CM, Scene, model_properties, properties
from hymotion_ray.motion.skeleton import JOINT_NAMES, Skeleton


def figure_objects(scene: Scene, figure: Figure, skeleton: Skeleton, joints: list[int]) -> None:
    """Add the mesh, one material a tone, and a skin that binds it to the joints' limb nodes."""
    tones = np.unique(figure.tones)
    model = scene.add("Model", "Figure", "Mesh", [Record("Version", [232]), model_properties([])])
    scene.connect(model, 0)
    geometry = scene.add("Geometry", "Figure", "Mesh", _geometry(figure, tones))
    scene.connect(geometry, model)
    for tone in tones:
        scene.connect(_material(scene, int(tone)), model)
    skin = scene.add("Skin", "Skin", "Skin", [Record("Version", [101])])
    scene.connect(skin, geometry)
    for joint, limb in enumerate(joints):
        cluster = _cluster(scene, figure, skeleton, joint)
        if cluster is not None:
            scene.connect(cluster, skin)
            scene.connect(limb, cluster)
    scene.add("Pose", "BindPose", "BindPose", _bind_pose(skeleton, model, joints))


def _geometry(figure: Figure, tones: NDArray[np.uint8]) -> list[Record]:
    corners = figure.faces.astype(np.int32).copy()
    corners[:, 2] = -1 - corners[:, 2]  # the last corner of a polygon is stored inverted
    slots = np.searchsorted(tones, figure.tones[figure.faces[:, 0]]).astype(np.int32)
    normals = Record(
        "LayerElementNormal",
        [0],
        [
            Record("Version", [101]),
            Record("Name", [""]),
            Record("MappingInformationType", ["ByPolygonVertex"]),
            Record("ReferenceInformationType", ["IndexToDirect"]),
            Record("Normals", [figure.normals.astype(np.float64)]),
            Record("NormalsIndex", [figure.faces.astype(np.int32)]),
        ],
    )
    materials = Record(
        "LayerElementMaterial",
        [0],
        [
            Record("Version", [101]),
            Record("Name", [""]),
            Record("MappingInformationType", ["ByPolygon"]),
            Record("ReferenceInformationType", ["IndexToDirect"]),
            Record("Materials", [slots]),
        ],
    )
    layers = [
        Record("LayerElement", [], [Record("Type", [kind]), Record("TypedIndex", [0])])
        for kind in ("LayerElementNormal", "LayerElementMaterial")
    ]
    return [
        properties([]),
        Record("GeometryVersion", [124]),
        Record("Vertices", [figure.vertices.astype(np.float64) * CM]),
        Record("PolygonVertexIndex", [corners]),
        normals,
        materials,
        Record("Layer", [0], [Record("Version", [100]), *layers]),
    ]


def _material(scene: Scene, tone: int) -> int:
    colour = [float(c) for c in (np.array(TONE_COLOURS[tone]) / 255) ** 2.2]
    entries: list[Sequence[str | float]] = [
        ("DiffuseColor", "Color", "", "A", *colour),
        ("DiffuseFactor", "Number", "", "A", 1.0),
        ("SpecularFactor", "Number", "", "A", 0.1),
        ("Shininess", "Number", "", "A", 12.0),
    ]
    return scene.add(
        "Material",
        TONE_NAMES[tone],
        "",
        [Record("Version", [102]), Record("ShadingModel", ["phong"]), properties(entries)],
    )


def _cluster(scene: Scene, figure: Figure, skeleton: Skeleton, joint: int) -> int | None:
    """Id of the cluster of the vertices that a joint moves; None when it moves none."""
    share = (figure.skin_weights * (figure.skin_indices == joint)).sum(axis=1)
    moved = np.flatnonzero(share > 0)
    if not len(moved):
        return None
    bind = _translation(skeleton.rest[joint])
    return scene.add(
        "Cluster",
        JOINT_NAMES[joint],
        "Cluster",
        [
            Record("Version", [100]),
            Record("UserData", ["", ""]),
            Record("Indexes", [moved.astype(np.int32)]),
            Record("Weights", [share[moved].astype(np.float64)]),
            Record("Transform", [_translation(-skeleton.rest[joint])]),
            Record("TransformLink", [bind]),
        ],
    )


def _bind_pose(skeleton: Skeleton, model: int, joints: list[int]) -> list[Record]:
    places = [(model, np.zeros(3)), *zip(joints, skeleton.rest[: len(joints)], strict=True)]
    nodes = [
        Record(
            "PoseNode", [], [Record("Node", [Int64(node)]), Record("Matrix", [_translation(place)])]
        )
        for node, place in places
    ]
    return [
        Record("Type", ["BindPose"]),
        Record("Version", [100]),
        Record("NbPoseNodes", [len(nodes)]),
        *nodes,
    ]


def _translation(place: NDArray[np.floating]) -> NDArray[np.float64]:
    """A 4x4 matrix as FBX stores it, translation in the last row, centimetres."""
    matrix = np.eye(4)
    matrix[3, :3] = np.asarray(place, dtype=np.float64) * CM
    return matrix
