"""The objects of an FBX scene and how they hang together. Knows ids, names and connections only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hymotion_ray.formats.motions.fbx_binary import Int64, Record

CM = 100.0
_CLASSES = {
    "Model": "Model",
    "NodeAttribute": "NodeAttribute",
    "Geometry": "Geometry",
    "Material": "Material",
    "Skin": "Deformer",
    "Cluster": "SubDeformer",
    "Pose": "Pose",
    "AnimationStack": "AnimStack",
    "AnimationLayer": "AnimLayer",
    "AnimationCurveNode": "AnimCurveNode",
    "AnimationCurve": "AnimCurve",
}
# What a kind of object is called in the file where that differs from the word used here.
_RECORDS = {"Skin": "Deformer", "Cluster": "Deformer"}
_FIRST_ID = 1_000_000


def properties(entries: Sequence[Sequence[str | int | float | Int64]]) -> Record:
    """A Properties70 record of (name, type, label, flags, values...)."""
    return Record("Properties70", [], [Record("P", list(entry)) for entry in entries])


def model_properties(entries: Sequence[Sequence[str | int | float | Int64]]) -> Record:
    """Properties of a model: those given, its attribute in use, and plain inheritance of scale.

    Without the two, Autodesk's SDK leaves the node without its attribute and warns.
    """
    use = ("DefaultAttributeIndex", "int", "Integer", "", 0)
    return properties([("InheritType", "enum", "", "", 1), use, *entries])


class Scene:
    """Collects objects and connections."""

    def __init__(self) -> None:
        self._objects: list[Record] = []
        self._connections: list[Record] = []

    def add(self, kind: str, name: str, sub_kind: str, children: list[Record]) -> int:
        """Id of a new object; FBX writes names as `name NUL SOH class`."""
        number = _FIRST_ID + len(self._objects)
        label = f"{name}\0\x01{_CLASSES[kind]}"
        record = Record(_RECORDS.get(kind, kind), [Int64(number), label, sub_kind], children)
        self._objects.append(record)
        return number

    def connect(self, child: int, parent: int, target: str | None = None) -> None:
        """Hang an object below another (0 is the scene), or on one of its properties."""
        ends = [Int64(child), Int64(parent)]
        record = Record("C", ["OO", *ends] if target is None else ["OP", *ends, target])
        self._connections.append(record)

    def records(self) -> list[Record]:
        """The records that describe the scene: documents, definitions, objects, connections."""
        document = Record(
            "Document", [Int64(_FIRST_ID - 1), "", "Scene"], [Record("RootNode", [Int64(0)])]
        )
        counts = Counter(record.name for record in self._objects)
        types = [
            Record("ObjectType", [name], [Record("Count", [count])])
            for name, count in {"GlobalSettings": 1, **counts}.items()
        ]
        head = [Record("Version", [100]), Record("Count", [1 + sum(counts.values())])]
        return [
            Record("Documents", [], [Record("Count", [1]), document]),
            Record("References"),
            Record("Definitions", [], [*head, *types]),
            Record("Objects", [], self._objects),
            Record("Connections", [], self._connections),
        ]
