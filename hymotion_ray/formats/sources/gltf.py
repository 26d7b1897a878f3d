"""Animated humanoids in GLB files, VRM animations (.vrma) among them: every clip by its name.

Knows nodes, skins, samplers and VRM's map of bones. A file has keys at times, not frames: each clip
is sampled at its own densest rate. Rest is the pose in which the skin was bound, or without a skin
the nodes' own (VRM demands a T-pose there).

Shape letters: L frames, N nodes, J joints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.clip import SourceClip, SourceReject
from hymotion_ray.formats.sources.file_bytes import read_file
from hymotion_ray.formats.sources.gltf_data import Glb
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

_MAX_NODES = 20_000


def read_glb_file(file: SourceFile) -> Iterator[SourceClip | SourceReject]:
    """Every animation of a file as `<file>#<name>`; a bad one does not stop the others."""
    glb = Glb(read_file(file.path, file.member))
    animations = glb.items("animations")
    if not animations:
        raise SourceError("no animation in the file", "no_motion")
    scene = _Scene(glb)
    seen: set[str] = set()
    for number, animation in enumerate(animations):
        label = str(animation.get("name") or f"animation_{number}")
        name = f"{file.name}#{label}"
        if name in seen:
            name = f"{name}~{number}"
        seen.add(name)
        try:
            yield scene.rig(animation).to_clip(
                name,
                source="VRMA" if scene.is_vrma else "GLB",
                licence=scene.licence,
                unit_m=1.0,
                up="+y",
                more={"clip": label},
            )
        except SourceError as error:
            yield SourceReject(name=name, code=error.code, message=str(error))


class _Scene:
    """The nodes that carry a skeleton: its joints and all above them, parents first."""

    def __init__(self, glb: Glb) -> None:
        self._glb = glb
        self._nodes = glb.items("nodes")
        if len(self._nodes) > _MAX_NODES:
            raise SourceError(f"{len(self._nodes)} nodes; at most {_MAX_NODES}", "too_large")
        parents = self._parents()
        bones = self._human_bones()
        wanted = self._skin_joints() or set(bones) or self._animated()
        for node in list(wanted):
            while (node := parents[node]) >= 0 and node not in wanted:
                wanted.add(node)
        self._order = self._parents_first(wanted, parents)
        place = {node: k for k, node in enumerate(self._order)}
        self._names = tuple(
            bones.get(n) or str(self._nodes[n].get("name") or f"node_{n}") for n in self._order
        )
        self._parents_of = tuple(place.get(parents[n], -1) for n in self._order)
        self._rest = self._rest_rotations()
        self.is_vrma = "VRMC_vrm_animation" in self._extensions()
        asset = glb.document.get("asset")
        self.licence = str((asset if isinstance(asset, dict) else {}).get("copyright") or "unknown")

    def rig(self, animation: dict[str, Any]) -> Rig:
        """The skeleton in motion, its frames the identity in the rest pose."""
        tracks, fps, times = self._tracks(animation)
        world = self._world(tracks, len(times))
        rotations = rotations_of(world[..., :3, :3])
        return Rig(
            names=self._names,
            parents=self._parents_of,
            rotations=rotations @ np.swapaxes(self._rest, -1, -2),
            positions=world[..., :3, 3],
            fps=fps,
        )

    # --- the tree ---------------------------------------------------------------------------------

    def _parents(self) -> list[int]:
        parents = [-1] * len(self._nodes)
        for node, item in enumerate(self._nodes):
            for child in item.get("children", []):
                if (
                    not isinstance(child, int)
                    or not 0 <= child < len(parents)
                    or parents[child] >= 0
                ):
                    raise SourceError("the nodes form no tree", "bad_syntax")
                parents[child] = node
        return parents

    def _parents_first(self, wanted: set[int], parents: list[int]) -> list[int]:
        order: list[int] = []
        waiting = sorted((n for n in wanted if parents[n] < 0), reverse=True)
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += [c for c in reversed(self._nodes[node].get("children", [])) if c in wanted]
        if len(order) != len(wanted):
            raise SourceError("the nodes form no tree", "bad_syntax")
        return order

    def _extensions(self) -> dict[str, Any]:
        found = self._glb.document.get("extensions", {})
        return found if isinstance(found, dict) else {}

    def _human_bones(self) -> dict[int, str]:
        """VRM's names of nodes, from an animation, a VRM 1.0 or a VRM 0.x model."""
        bones: dict[int, str] = {}
        for key in ("VRMC_vrm_animation", "VRMC_vrm", "VRM"):
            try:
                found = self._extensions()[key]["humanoid"]["humanBones"]
                pairs = (
                    found.items() if isinstance(found, dict) else ((b["bone"], b) for b in found)
                )
                bones |= {int(bone["node"]): str(name) for name, bone in pairs}
            except (KeyError, TypeError, ValueError):
                continue
        return {node: name for node, name in bones.items() if 0 <= node < len(self._nodes)}

    def _skin_joints(self) -> set[int]:
        joints = {j for skin in self._glb.items("skins") for j in skin.get("joints", [])}
        if not all(isinstance(j, int) and 0 <= j < len(self._nodes) for j in joints):
            raise SourceError("a skin names a joint that is not there", "bad_syntax")
        return joints

    def _animated(self) -> set[int]:
        targets = {
            channel.get("target", {}).get("node")
            for animation in self._glb.items("animations")
            for channel in animation.get("channels", [])
        }
        return {n for n in targets if isinstance(n, int) and 0 <= n < len(self._nodes)}

    def _rest_rotations(self) -> Doubles:
        """World rotations (J,3,3) at rest: as the skin was bound, else as the nodes stand."""
        rest = rotations_of(self._world({}, 1)[0, :, :3, :3])
        place = {node: k for k, node in enumerate(self._order)}
        for skin in self._glb.items("skins"):
            if "inverseBindMatrices" not in skin:
                continue
            matrices = self._glb.accessor(skin["inverseBindMatrices"])
            matrices = matrices.reshape(-1, 4, 4).swapaxes(-1, -2)
            if len(matrices) < len(skin.get("joints", [])) or not np.isfinite(matrices).all():
                raise SourceError("a skin has too few bind matrices", "bad_syntax")
            for joint, matrix in zip(skin["joints"], matrices, strict=False):
                if abs(np.linalg.det(matrix[:3, :3])) > 1e-12:
                    rest[place[joint]] = rotations_of(
                        np.linalg.inv(matrix)[None, :3, :3].astype(np.float64)
                    )[0]
        return rest

    # --- the motion -------------------------------------------------------------------------------

    def _tracks(
        self, animation: dict[str, Any]
    ) -> tuple[dict[tuple[int, str], Doubles], float, Doubles]:
        """Sampled values by node and path, the rate, and the times (L) from the clip's start."""
        keys: dict[tuple[int, str], tuple[Doubles, Doubles, str]] = {}
        wanted = set(self._order)
        try:
            for channel in animation["channels"]:
                node, path = channel["target"].get("node"), channel["target"]["path"]
                if node not in wanted or path not in ("translation", "rotation", "scale"):
                    continue
                sampler = animation["samplers"][channel["sampler"]]
                times = self._glb.accessor(sampler["input"])[:, 0]
                values = self._glb.accessor(sampler["output"])
                keys[node, path] = (times, values, sampler.get("interpolation", "LINEAR"))
        except (KeyError, IndexError, TypeError, AttributeError) as cause:
            raise SourceError(f"the animation is damaged: {cause!r}", "bad_syntax") from cause
        if not keys:
            raise SourceError("the animation moves no joint of a skeleton", "no_motion")
        grid, fps = frame_grid([times for times, _, _ in keys.values()], len(self._order))
        return {key: sample(grid, key[1], *track) for key, track in keys.items()}, fps, grid

    def _world(self, tracks: dict[tuple[int, str], Doubles], num_frames: int) -> Doubles:
        """World matrices (L,J,4,4)."""
        locals_ = [_local(self._nodes[node], node, tracks) for node in self._order]
        return world_matrices(self._parents_of, locals_, num_frames)


def _local(item: dict[str, Any], node: int, tracks: dict[tuple[int, str], Doubles]) -> Doubles:
    """Matrices (L or 1, 4, 4) of a node against its parent."""
    try:
        if "matrix" in item and not any(key[0] == node for key in tracks):
            return np.array(item["matrix"], dtype=np.float64).reshape(1, 4, 4).swapaxes(-1, -2)
        return local_matrices(
            tracks.get((node, "translation"), np.array([item.get("translation", (0, 0, 0))])),
            tracks.get((node, "rotation"), np.array([item.get("rotation", (0, 0, 0, 1))])),
            tracks.get((node, "scale"), np.array([item.get("scale", (1, 1, 1))])),
        )
    except (TypeError, ValueError) as cause:
        raise SourceError(f"node {node} is damaged: {cause}", "bad_syntax") from cause
