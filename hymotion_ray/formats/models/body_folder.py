"""The `body/` folder of a model: rest positions of the joints and, as a rule, a skinned mesh.

The files are raw little-endian arrays without headers, so their sizes are all
that tells a whole file from a cut one: every size is checked against the others.
Letters: V vertices, F faces.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hymotion_ray.errors import CheckpointError, InputError
from hymotion_ray.formats.local_file import is_named, require_file
from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.skeleton import JOINT_NAMES, NUM_JOINTS, PARENTS, Skeleton

BODY_FOLDER = "body"
REST_FILE, NAMES_FILE, PARENTS_FILE = "j_template.bin", "joint_names.json", "kintree.bin"
MESH_FILES = {
    "v_template.bin": ("<f4", 3),
    "skinWeights.bin": ("<f4", 4),
    "skinIndice.bin": ("<u2", 4),
    "faces.bin": ("<u2", 3),
}


def read_body(folder: Path) -> tuple[Skeleton, BodyMesh | None]:
    """Skeleton and mesh of a body folder; the mesh is None where none of its four files is there.

    Raises `CheckpointError` for a missing, empty or cut file, sizes that do not fit together,
    another joint order than SMPL-H's 52, and indices out of range.
    """
    rest = _read(folder / REST_FILE, "<f4", 3)
    if len(rest) != NUM_JOINTS:
        raise CheckpointError(
            f"{folder / REST_FILE} holds {len(rest)} joints; allowed: {NUM_JOINTS} "
            "(SMPL-H with hands)"
        )
    if not np.isfinite(rest).all():
        raise CheckpointError(f"{folder / REST_FILE} holds numbers that are not finite")
    _check_tree(folder)
    skeleton = Skeleton(rest)
    has_mesh = any(is_named(folder / name) for name in MESH_FILES)
    return skeleton, _mesh(folder) if has_mesh else None


def write_body(skeleton: Skeleton, mesh: BodyMesh | None, folder: Path) -> None:
    """Write a body folder that `read_body` reads back to equal arrays."""
    folder.mkdir()
    np.asarray(skeleton.rest, "<f4").tofile(folder / REST_FILE)
    np.asarray(PARENTS, "<i4").tofile(folder / PARENTS_FILE)
    (folder / NAMES_FILE).write_text(json.dumps(JOINT_NAMES, indent=2) + "\n", "utf-8")
    if mesh is None:
        return
    if len(mesh.vertices) > 1 << 16:
        raise CheckpointError(
            f"the body mesh has {len(mesh.vertices)} vertices; allowed: {1 << 16}, the most that a "
            "release's face file can number"
        )
    arrays = (mesh.vertices, mesh.skin_weights, mesh.skin_indices, mesh.faces)
    for (name, (dtype, _)), array in zip(MESH_FILES.items(), arrays, strict=True):
        np.ascontiguousarray(array, dtype).tofile(folder / name)


def _read(path: Path, dtype: str, num_columns: int) -> np.ndarray:
    require_file(path, CheckpointError)
    row = np.dtype(dtype).itemsize * num_columns
    size = path.stat().st_size
    if size % row:
        raise CheckpointError(
            f"{path} has {size} bytes, which is no whole number of rows of {row} bytes "
            f"({num_columns} x {dtype[1:]}); it is cut short or of another format"
        )
    return np.fromfile(path, dtype).reshape(-1, num_columns)


def _check_tree(folder: Path) -> None:
    """The joints' parents and names, where the folder states them, must be the known ones."""
    if is_named(folder / PARENTS_FILE):
        parents = _read(folder / PARENTS_FILE, "<i4", 1).reshape(-1)
        if parents.tolist() != list(PARENTS):
            raise CheckpointError(
                f"{folder / PARENTS_FILE} gives another joint tree ({len(parents)} joints) than "
                f"the {NUM_JOINTS} joints of SMPL-H, in whose order the model's rotations stand"
            )
    path = folder / NAMES_FILE
    if is_named(path):
        require_file(path, CheckpointError)
        try:
            names = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not JSON: {error}") from error
        if names != list(JOINT_NAMES):
            raise CheckpointError(
                f"{path} lists other joint names than the {NUM_JOINTS} of SMPL-H, in whose order "
                "the model's rotations stand"
            )


def _mesh(folder: Path) -> BodyMesh:
    arrays = {name: _read(folder / name, *form) for name, form in MESH_FILES.items()}
    vertices, weights, indices, faces = arrays.values()
    for name in ("skinWeights.bin", "skinIndice.bin"):
        if len(arrays[name]) != len(vertices):
            raise CheckpointError(
                f"{folder / name} has {len(arrays[name])} rows, v_template.bin has {len(vertices)} "
                "vertices; allowed: one row a vertex"
            )
    if not np.isfinite(vertices).all():
        raise CheckpointError(f"{folder / 'v_template.bin'} holds numbers that are not finite")
    try:
        return BodyMesh(vertices=vertices, skin_weights=weights, skin_indices=indices, faces=faces)
    except InputError as error:
        raise CheckpointError(f"{folder} is damaged or of another format: {error}") from error
