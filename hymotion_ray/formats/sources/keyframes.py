"""Keyframed tracks and scaled nodes: values at frames, and the world rotations of a node tree.

Knows what GLB and FBX have in common: keys at times, nodes with translation, rotation and scale.
Does not know either file.

Shape letters: L frames, K keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.clip import check_size
from hymotion_ray.formats.sources.frame_rate import snapped

Doubles = NDArray[np.float64]

DEFAULT_FPS = 30.0
_LEAST_FPS, _MOST_FPS = 24.0, 240.0
_SKEW = 1e-3
# Key times are float32: a key this little later than a frame is meant for it.
_SAME_TIME = 1e-5


def frame_grid(clocks: list[Doubles], num_nodes: int) -> tuple[Doubles, float]:
    """Times (L) from the first key to the last, and their rate: that of the densest track.

    clocks: key times of each track, in seconds. 30 frames a second where keys are few.
    `SourceError`: not_finite for times that go back, too_large for more than is held in memory.
    """
    for times in clocks:
        if not len(times) or not np.isfinite(times).all() or (np.diff(times) < 0).any():
            raise SourceError("key times are missing, not finite or go back", "not_finite")
    start, end = min(t[0] for t in clocks), max(t[-1] for t in clocks)
    steps = [float(np.median(np.diff(t))) for t in clocks if len(t) > 2]
    fps = max((1 / step for step in steps if step > 0), default=DEFAULT_FPS)
    fps = DEFAULT_FPS if fps < _LEAST_FPS * 0.99 else snapped(min(fps, _MOST_FPS))
    check_size(int((end - start) * fps), num_nodes)
    return start + np.arange(int((end - start) * fps + 1e-3) + 1) / fps, fps


def sample(grid: Doubles, path: str, times: Doubles, values: Doubles, way: str) -> Doubles:
    """A track's values (L, 3 or 4) at the times of `grid`; held before its first and last key.

    path: "rotation" (quaternions x y z w), or another. times (K); values (K, 3 or 4), for the way
    CUBICSPLINE three rows a key; other ways are STEP and LINEAR.
    """
    width = 4 if path == "rotation" else 3
    rows = 3 if way == "CUBICSPLINE" else 1
    if values.shape != (len(times) * rows, width) or not np.isfinite(values).all():
        raise SourceError(f"a {path} track has values of shape {values.shape}", "bad_shape")
    keys = values.reshape(len(times), rows, width)
    if path == "rotation" and (np.linalg.norm(keys[:, rows // 2], axis=1) < 0.5).any():
        raise SourceError("a rotation track holds quaternions far from length 1", "bad_rotation")
    clock, first = np.unique(times, return_index=True)
    at, keys = np.clip(grid, clock[0], clock[-1]), keys[first]
    if rows == 3:
        return _cubic(at, clock, keys)
    if len(clock) == 1 or way == "STEP":
        return keys[np.searchsorted(clock, at + _SAME_TIME, side="right") - 1, 0]
    if path == "rotation":
        return Slerp(clock, Rotation.from_quat(keys[:, 0]))(at).as_quat()
    return np.stack([np.interp(at, clock, column) for column in keys[:, 0].T], axis=1)


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


def local_matrices(place: Doubles, quat: Doubles, scale: Doubles) -> Doubles:
    """Matrices (L,4,4) of translations, quaternions (x y z w) and scales of L rows or one."""
    num_frames = max(len(place), len(quat), len(scale))
    local = np.zeros((num_frames, 4, 4))
    local[:, :3, :3] = Rotation.from_quat(quat).as_matrix() * scale[:, None, :]
    local[:, :3, 3] = place
    local[:, 3, 3] = 1.0
    return local


def world_matrices(parents: tuple[int, ...], locals_: list[Doubles], num_frames: int) -> Doubles:
    """World matrices (L,J,4,4) of local ones (L or 1, 4, 4), parents first."""
    world = np.zeros((num_frames, len(parents), 4, 4))
    for k, (parent, local) in enumerate(zip(parents, locals_, strict=True)):
        world[:, k] = local if parent < 0 else world[:, parent] @ local
    if not np.isfinite(world).all():
        raise SourceError("a node or key is not finite", "not_finite")
    return world


def rotations_of(matrices: Doubles) -> Doubles:
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
