"""Acclaim motions: an .amc file of angles and the .asf skeleton that it belongs to.

Knows both files' syntax and their kinematics: a bone turns about axes of its own, `C M inv(C)`,
against its parent, and all angles zero is the rest pose. Files name no frame rate: the CMU
collection's 120 is taken and said so.

Shape letters: L frames, J joints (where bones start; ends of chains are joints `<bone>_end`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.clip import SourceClip, check_size
from hymotion_ray.formats.sources.file_bytes import neighbours, read_file
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.rig import Rig, world_frames

Doubles = NDArray[np.float64]

FPS = 120.0
MAX_TEXT_BYTES = 128 << 20
_INCH_M = 0.0254
_MAX_BONES = 1000
_MAX_SKELETON_BYTES = 4 << 20
_DOFS = ("tx", "ty", "tz", "rx", "ry", "rz", "l")


@dataclass
class _Bone:
    name: str
    direction: Doubles = field(default_factory=lambda: np.zeros(3))
    length: float = 0.0
    axis: Rotation = field(default_factory=Rotation.identity)
    dofs: tuple[str, ...] = ()
    parent: str = ""


@dataclass(frozen=True)
class Skeleton:
    """What an .asf says: bones in order of the hierarchy, the root first; metres a unit or None."""

    bones: tuple[_Bone, ...]
    unit_m: float | None
    degrees: bool


def read_amc_file(file: SourceFile) -> Iterator[SourceClip]:
    """The one clip of an .amc file, with the skeleton that lies beside it."""
    place, notes = _skeleton_of(file)
    skeleton = parse_asf(read_file(file.path if file.member else place, _member(file, place)))
    rig = parse_amc(read_file(file.path, file.member, limit=MAX_TEXT_BYTES), skeleton)
    notes += [f"no frame rate in the file: {FPS:g} taken"]
    licence = "CMU mocap: free to use, no resale of the data itself, acknowledge NSF EIA-0196217"
    is_cmu = any(bone.name == "lhipjoint" for bone in skeleton.bones)
    yield Rig(**{**vars(rig), "warnings": (*rig.warnings, *notes)}).to_clip(
        file.name,
        source="ASF/AMC",
        licence=licence if is_cmu else "unknown",
        unit_m=skeleton.unit_m,
        up="+y",
    )


def _member(file: SourceFile, place: str) -> str:
    return place if file.member else ""


def _skeleton_of(file: SourceFile) -> tuple[str, list[str]]:
    """The .asf of the same name, of the part before the last `_`, or the only one in the folder."""
    found = [n for n in neighbours(file.path, file.member) if n.lower().endswith(".asf")]
    stem = PurePosixPath((file.member or file.path).replace("\\", "/")).stem
    for wanted in (stem, stem.rpartition("_")[0]):
        for place in found:
            if PurePosixPath(place.replace("\\", "/")).stem.lower() == wanted.lower():
                return place, []
    if len(found) == 1:
        name = PurePosixPath(found[0].replace("\\", "/")).name
        return found[0], [f"skeleton {name} taken: the only one in the folder"]
    raise SourceError(
        f"no skeleton: {stem}.asf or {stem.rpartition('_')[0] or stem}.asf must lie beside it"
        f" ({len(found)} other .asf files do)",
        "no_skeleton",
    )


# --- skeleton -------------------------------------------------------------------------------------


def parse_asf(content: bytes) -> Skeleton:
    """The skeleton in an .asf file's bytes; `SourceError` (bad_syntax) for what is malformed."""
    sections: dict[str, list[list[str]]] = {}
    current: list[list[str]] = []
    for line in content[:_MAX_SKELETON_BYTES].decode("latin-1").splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0].startswith(":"):
            current = sections.setdefault(words[0][1:].lower(), [])
            words = words[1:]
        if words:
            current.append(words)
    missing = [name for name in ("root", "bonedata", "hierarchy") if name not in sections]
    if missing:
        raise SourceError(f"the .asf lacks the section :{missing[0]}", "bad_syntax")
    try:
        units = {words[0].lower(): words[1] for words in sections.get("units", [])}
        degrees = not units.get("angle", "deg").lower().startswith("rad")
        bones = {bone.name: bone for bone in _bones(sections, degrees)}
        unit = float(units["length"]) if "length" in units else 0.0
        return Skeleton(
            tuple(_in_order(bones, sections["hierarchy"])),
            _INCH_M / unit if unit > 0 else None,
            degrees,
        )
    except (ValueError, IndexError, KeyError) as cause:
        raise SourceError(f"the .asf is malformed: {cause!r}", "bad_syntax") from cause


def _bones(sections: dict[str, list[list[str]]], degrees: bool) -> Iterator[_Bone]:
    fields = {words[0].lower(): words[1:] for words in sections["root"]}
    root = _Bone("root")
    root.dofs = tuple(word.lower() for word in fields["order"])
    root.axis = _euler(
        "".join(fields.get("axis", ["XYZ"])), fields.get("orientation", [0, 0, 0]), degrees
    )
    yield root
    bone = _Bone("")
    for words in sections["bonedata"]:
        key, values = words[0].lower(), words[1:]
        if key == "begin":
            bone = _Bone("")
        elif key == "end":
            yield bone
        elif key == "name":
            bone.name = values[0]
        elif key == "direction":
            bone.direction = np.array([float(v) for v in values[:3]])
        elif key == "length":
            bone.length = float(values[0])
        elif key == "axis":
            bone.axis = _euler(values[3] if len(values) > 3 else "XYZ", values[:3], degrees)
        elif key == "dof":
            bone.dofs = tuple(v.lower() for v in values)


def _euler(order: str, values: list, degrees: bool) -> Rotation:
    """Turns about fixed axes in the order in which they are named."""
    angles = [float(v) for v in values]
    if sorted(order.lower()) != ["x", "y", "z"] or len(angles) != 3:
        raise ValueError(f"axis {values} {order}")
    return Rotation.from_euler(order.lower(), angles, degrees=degrees)


def _in_order(bones: dict[str, _Bone], hierarchy: list[list[str]]) -> Iterator[_Bone]:
    children: dict[str, list[str]] = {}
    for words in hierarchy:
        if words[0].lower() not in ("begin", "end"):
            children.setdefault(words[0], []).extend(words[1:])
            for child in words[1:]:
                bones[child].parent = words[0]
    waiting, seen = ["root"], 0
    while waiting:
        name = waiting.pop()
        seen += 1
        if seen > _MAX_BONES:
            raise ValueError("a hierarchy that loops or is too large")
        bone = bones[name]
        if not np.isfinite([*bone.direction, bone.length]).all():
            raise ValueError(f"bone {name} is not finite")
        if set(bone.dofs) - set(_DOFS):
            raise ValueError(f"bone {name} has degrees of freedom {bone.dofs}")
        yield bone
        waiting.extend(reversed(children.get(name, [])))


# --- motion ---------------------------------------------------------------------------------------


def parse_amc(content: bytes, skeleton: Skeleton) -> Rig:
    """World frames in the skeleton's units; every bone with angles must stand in every frame."""
    values, degrees = _frames(content, skeleton)
    names: list[str] = []
    parents: list[int] = []
    rotations: list[Doubles] = []
    positions: list[Doubles] = []
    index: dict[str, int] = {}
    with_children = {bone.parent for bone in skeleton.bones}
    num_frames = len(values["root"])
    check_size(num_frames, 2 * len(skeleton.bones))
    for bone in skeleton.bones:
        local, place = _local(bone, values.get(bone.name), num_frames, degrees)
        parent = next((b for b in skeleton.bones if b.name == bone.parent), None)
        index[bone.name] = len(names)
        names.append(bone.name)
        parents.append(index[parent.name] if parent else -1)
        rotations.append(local)
        end = parent.direction * parent.length if parent else np.zeros(3)
        positions.append(place + end)
        if bone.name not in with_children:
            names.append(f"{bone.name}_end")
            parents.append(index[bone.name])
            rotations.append(np.broadcast_to(np.eye(3), local.shape))
            positions.append(np.broadcast_to(bone.direction * bone.length, place.shape))
    return Rig(
        names=tuple(names),
        parents=tuple(parents),
        fps=FPS,
        **world_frames(tuple(parents), np.stack(rotations, 1), np.stack(positions, 1)),
    )


def _local(
    bone: _Bone, values: Doubles | None, num_frames: int, degrees: bool
) -> tuple[Doubles, Doubles]:
    """Rotations (L,3,3) and shifts (L,3) of a bone against its parent."""
    shift = np.zeros((num_frames, 3))
    turn = Rotation.identity(num_frames)
    if values is not None:
        turns = [k for k, dof in enumerate(bone.dofs) if dof[0] == "r"]
        if turns:
            order = "".join(bone.dofs[k][1] for k in turns)
            turn = Rotation.from_euler(order, values[:, turns], degrees=degrees)
        for k, dof in enumerate(bone.dofs):
            if dof[0] == "t":
                shift[:, "xyz".index(dof[1])] = values[:, k]
    return (bone.axis * turn * bone.axis.inv()).as_matrix(), shift


def _frames(content: bytes, skeleton: Skeleton) -> tuple[dict[str, Doubles], bool]:
    """Values (L, dofs) by bone, and whether angles are degrees."""
    dofs = {bone.name: len(bone.dofs) for bone in skeleton.bones if bone.dofs}
    rows: dict[str, list[list[str]]] = {name: [] for name in dofs}
    num_frames, degrees = 0, skeleton.degrees
    for number, line in enumerate(content.decode("latin-1").splitlines(), start=1):
        words = line.split()
        if not words or words[0][0] in "#:":
            if words and words[0].upper() in (":RADIANS", ":DEGREES"):
                degrees = words[0].upper() == ":DEGREES"
            continue
        if len(words) == 1 and words[0].isdecimal():
            num_frames += 1
            continue
        if len(words) - 1 != dofs.get(words[0]):
            known = f"has {dofs[words[0]]} angles" if words[0] in dofs else "is not in the skeleton"
            raise SourceError(f"line {number}: bone {words[0][:40]} {known}", "wrong_skeleton")
        rows[words[0]].append(words[1:])
    if num_frames == 0:
        raise SourceError("no frames", "no_frames")
    short = next((name for name, found in rows.items() if len(found) != num_frames), None)
    if short is not None:
        raise SourceError(
            f"bone {short} stands in {len(rows[short])} of {num_frames} frames; the file is cut off"
            " or of another skeleton",
            "truncated",
        )
    try:
        values = {name: np.array(found, dtype=np.float64) for name, found in rows.items()}
    except ValueError as cause:
        raise SourceError(f"a frame holds what is not a number: {cause}", "bad_syntax") from cause
    if not all(np.isfinite(table).all() for table in values.values()):
        raise SourceError("a frame holds NaN or infinite numbers", "not_finite")
    return values, degrees
