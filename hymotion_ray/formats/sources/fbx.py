"""Animated humanoids in FBX files, read by ufbx through the optional package pufbx.

Knows which of ufbx's nodes form the skeleton and how its baked keys become frames. Rest is how the
nodes stand in the file, since pufbx does not give bind poses. The parsing itself is ufbx's.

Shape letters: L frames, J joints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.errors import MissingDependencyError, SourceError
from hymotion_ray.formats.sources.clip import SourceClip, SourceReject
from hymotion_ray.formats.sources.file_bytes import local_path
from hymotion_ray.formats.sources.keyframes import (
    frame_grid,
    local_matrices,
    rotations_of,
    sample,
    world_matrices,
)
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.rig import Rig

Doubles = NDArray[np.float64]

_BAKE_FPS = 30.0
_MAX_NODES = 20_000
_PATHS = ("translation", "rotation", "scale")


def read_fbx_file(file: SourceFile) -> Iterator[SourceClip | SourceReject]:
    """Every animation stack of a file as `<file>#<name>`; a bad one does not stop the others."""
    pufbx = _pufbx()
    with local_path(file.path, file.member) as path:
        try:
            scene = pufbx.load_fbx(str(path))
        except (pufbx.UFBXError, RuntimeError, OSError, ValueError) as cause:
            raise SourceError(f"not an FBX file, or damaged: {cause}", "damaged") from cause
        stacks = list(scene.anim_stacks)
        if not stacks:
            raise SourceError("no animation in the file", "no_motion")
        seen: set[str] = set()
        for number, stack in enumerate(stacks):
            name = f"{file.name}#{stack.name or number}"
            if name in seen:
                name = f"{name}~{number}"
            seen.add(name)
            try:
                yield _rig(pufbx, scene, stack).to_clip(
                    name, source="FBX", more={"clip": str(stack.name)}
                )
            except SourceError as error:
                yield SourceReject(name=name, code=error.code, message=str(error))


def _pufbx() -> Any:
    try:
        import pufbx
    except ImportError as cause:
        raise MissingDependencyError(
            "FBX files are read by pufbx, which is not installed; run `pip install pufbx`"
        ) from cause
    return pufbx


def _rig(pufbx: Any, scene: Any, stack: Any) -> Rig:
    """The skeleton in motion, its frames the identity as the nodes stand in the file."""
    nodes = list(scene.nodes)
    if len(nodes) > _MAX_NODES:
        raise SourceError(f"{len(nodes)} nodes; at most {_MAX_NODES}", "too_large")
    try:
        baked = list(pufbx.bake_anim(scene, stack.anim, resample_rate=_BAKE_FPS).modified_nodes)
    except (pufbx.UFBXError, RuntimeError, ValueError) as cause:
        raise SourceError(f"the animation is damaged: {cause}", "damaged") from cause
    keys = {
        (int(node.typed_id), path): _keys(getattr(node, f"{path}_keys"))
        for node in baked
        for path in _PATHS
    }
    order = _skeleton(nodes, {node for node, _ in keys})
    keys = {key: track for key, track in keys.items() if key[0] in set(order) and len(track[0])}
    if not keys:
        raise SourceError("the animation moves no joint of a skeleton", "no_motion")
    place = {node: k for k, node in enumerate(order)}
    parents = tuple(place.get(_parent(nodes[node]), -1) for node in order)
    grid, fps = frame_grid([times for times, _ in keys.values()], len(order))
    tracks = {key: sample(grid, key[1], *track, "LINEAR") for key, track in keys.items()}
    world = world_matrices(parents, [_local(nodes[n], n, tracks) for n in order], len(grid))
    still = world_matrices(parents, [_local(nodes[n], n, {}) for n in order], 1)
    rest = rotations_of(still[0, :, :3, :3])
    return Rig(
        names=tuple(str(nodes[node].name) or f"node_{node}" for node in order),
        parents=parents,
        rotations=rotations_of(world[..., :3, :3]) @ np.swapaxes(rest, -1, -2),
        positions=world[..., :3, 3],
        fps=fps,
    )


def _keys(keys: NDArray[Any]) -> tuple[Doubles, Doubles]:
    """Times (K) and values (K, 3 or 4) of ufbx's key records."""
    axes = keys["value"].dtype.names or ()
    values = np.stack([keys["value"][axis] for axis in axes], axis=1)
    return keys["time"].astype(np.float64), values.astype(np.float64)


def _parent(node: Any) -> int:
    return -1 if node.parent is None else int(node.parent.typed_id)


def _skeleton(nodes: list[Any], moved: set[int]) -> list[int]:
    """Bones and all above them (without bones: what moves), parents first."""
    wanted = {k for k, node in enumerate(nodes) if node.bone is not None} or set(moved)
    for node in list(wanted):
        while (node := _parent(nodes[node])) >= 0 and node not in wanted:
            wanted.add(node)
    return sorted(wanted, key=lambda node: (int(nodes[node].node_depth), node))


def _local(node: Any, number: int, tracks: dict[tuple[int, str], Doubles]) -> Doubles:
    transform = node.local_transform
    still = {
        "translation": _numbers(transform.translation),
        "rotation": _numbers(transform.rotation),
        "scale": _numbers(transform.scale),
    }
    place, quat, scale = (tracks.get((number, path), still[path][None]) for path in _PATHS)
    return local_matrices(place, quat, scale)


def _numbers(vector: Any) -> Doubles:
    axes = ("x", "y", "z", "w") if hasattr(vector, "w") else ("x", "y", "z")
    return np.array([float(getattr(vector, axis)) for axis in axes])
