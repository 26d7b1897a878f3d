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
from scipy.spatial.transform import Rotation, Slerp

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.clip import SourceClip, SourceReject
from hymotion_ray.formats.sources.file_bytes import read_file
from hymotion_ray.formats.sources.frame_rate import snapped
from hymotion_ray.formats.sources.gltf_data import Glb
from hymotion_ray.formats.sources.listing import SourceFile
from hymotion_ray.formats.sources.rig import Rig

Doubles = NDArray[np.float64]

DEFAULT_FPS = 30.0
_LEAST_FPS, _MOST_FPS = 24.0, 240.0
_MAX_MATRICES = 4_000_000
_MAX_NODES = 20_000
_SKEW = 1e-3


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
        if len(times) * len(self._order) > _MAX_MATRICES:
            raise SourceError(f"{len(times)} frames of {len(self._order)} nodes", "too_large")
        world = self._world(tracks, len(times))
        rotations = _rotations(world[..., :3, :3])
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
        rest = _rotations(self._world({}, 1)[0, :, :3, :3])
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
                    rest[place[joint]] = _rotations(np.linalg.inv(matrix)[None, :3, :3])[0]
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
        clocks = [times for times, _, _ in keys.values()]
        for times in clocks:
            if not np.isfinite(times).all() or (np.diff(times) < 0).any():
                raise SourceError("key times are not finite or go back", "not_finite")
        start, end = min(t[0] for t in clocks), max(t[-1] for t in clocks)
        fps = _densest(clocks)
        if (end - start) * fps * len(self._order) > _MAX_MATRICES:
            raise SourceError(f"{end - start:.0f} s of {len(self._order)} nodes", "too_large")
        grid = start + np.arange(int((end - start) * fps + 1e-3) + 1) / fps
        return {key: _sample(grid, key[1], *track) for key, track in keys.items()}, fps, grid

    def _world(self, tracks: dict[tuple[int, str], Doubles], num_frames: int) -> Doubles:
        """World matrices (L,J,4,4)."""
        world = np.zeros((num_frames, len(self._order), 4, 4))
        for k, (node, parent) in enumerate(zip(self._order, self._parents_of, strict=True)):
            local = _local(self._nodes[node], node, tracks)
            world[:, k] = local if parent < 0 else world[:, parent] @ local
        if not np.isfinite(world).all():
            raise SourceError("a node or key is not finite", "not_finite")
        return world


def _densest(clocks: list[Doubles]) -> float:
    """The rate of the track with the most keys a second; 30 where keys are few."""
    rates = [
        1 / float(np.median(np.diff(t))) for t in clocks if len(t) > 2 and np.median(np.diff(t)) > 0
    ]
    best = max(rates, default=DEFAULT_FPS)
    return DEFAULT_FPS if best < _LEAST_FPS * 0.99 else snapped(min(best, _MOST_FPS))


def _sample(grid: Doubles, path: str, times: Doubles, values: Doubles, way: str) -> Doubles:
    """A track's values (L, 3 or 4) at the times of `grid`; held before its first and last key."""
    width = 4 if path == "rotation" else 3
    tangents = 3 if way == "CUBICSPLINE" else 1
    if values.shape != (len(times) * tangents, width) or not np.isfinite(values).all():
        raise SourceError(f"a {path} track has values of shape {values.shape}", "bad_shape")
    if (
        path == "rotation"
        and (
            np.linalg.norm(values.reshape(len(times), tangents, 4)[:, tangents // 2], axis=1) < 0.5
        ).any()
    ):
        raise SourceError("a rotation track holds quaternions far from length 1", "bad_rotation")
    clock, first = np.unique(times, return_index=True)
    at = np.clip(grid, clock[0], clock[-1])
    if way == "CUBICSPLINE":
        return _cubic(at, clock, values.reshape(len(times), 3, width)[first])
    keys = values[first]
    if len(clock) == 1 or way == "STEP":
        return keys[np.searchsorted(clock, at + 1e-9, side="right") - 1]
    if path == "rotation":
        return Slerp(clock, Rotation.from_quat(keys))(at).as_quat()
    return np.stack([np.interp(at, clock, column) for column in keys.T], axis=1)


def _cubic(at: Doubles, clock: Doubles, keys: Doubles) -> Doubles:
    """Hermite splines of (in-tangent, value, out-tangent); glTF 2.0, appendix C.5."""
    if len(clock) == 1:
        return np.repeat(keys[:, 1], len(at), axis=0)
    k = np.clip(np.searchsorted(clock, at, side="right") - 1, 0, len(clock) - 2)
    step = (clock[k + 1] - clock[k])[:, None]
    t = (at - clock[k])[:, None] / step
    return (
        (2 * t**3 - 3 * t**2 + 1) * keys[k, 1]
        + step * (t**3 - 2 * t**2 + t) * keys[k, 2]
        + (-2 * t**3 + 3 * t**2) * keys[k + 1, 1]
        + step * (t**3 - t**2) * keys[k + 1, 0]
    )


def _local(item: dict[str, Any], node: int, tracks: dict[tuple[int, str], Doubles]) -> Doubles:
    """Matrices (L or 1, 4, 4) of a node against its parent."""
    try:
        if "matrix" in item and not any(key[0] == node for key in tracks):
            return np.array(item["matrix"], dtype=np.float64).reshape(1, 4, 4).swapaxes(-1, -2)
        place = tracks.get((node, "translation"), np.array([item.get("translation", (0, 0, 0))]))
        quat = tracks.get((node, "rotation"), np.array([item.get("rotation", (0, 0, 0, 1))]))
        scale = tracks.get((node, "scale"), np.array([item.get("scale", (1, 1, 1))]))
        num_frames = max(len(place), len(quat), len(scale))
        local = np.zeros((num_frames, 4, 4))
        local[:, :3, :3] = Rotation.from_quat(quat).as_matrix() * scale[:, None, :]
        local[:, :3, 3] = place
        local[:, 3, 3] = 1.0
    except (TypeError, ValueError) as cause:
        raise SourceError(f"node {node} is damaged: {cause}", "bad_syntax") from cause
    return local


def _rotations(matrices: Doubles) -> Doubles:
    """Rotations (..., 3, 3) of matrices that also scale; `SourceError` (mirrored) for mirrors."""
    lengths = np.linalg.norm(matrices, axis=-2, keepdims=True)
    if (lengths < 1e-9).any():
        raise SourceError("a joint is scaled to nothing", "bad_rotation")
    turned = matrices / lengths
    if (np.linalg.det(turned) < 0).any():
        raise SourceError("a joint is mirrored by a negative scale", "mirrored")
    skew = np.abs(np.swapaxes(turned, -1, -2) @ turned - np.eye(3)).max()
    if skew > _SKEW:
        u, _, vt = np.linalg.svd(turned)
        turned = u @ vt
    return turned
