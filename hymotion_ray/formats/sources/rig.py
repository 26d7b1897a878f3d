"""From any humanoid rig's world frames to a `SourceClip`: which joints, which axis, which unit.

Knows that files rarely say what is up and how long a unit is, and that the body itself does. Does
not know any file format.

Shape letters: L frames, J joints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.clip import SourceClip, float32
from hymotion_ray.formats.sources.joint_names import find_humanoid
from hymotion_ray.motion.humanoid import Humanoid, body_axes, rest_offsets, rest_positions

Doubles = NDArray[np.float64]

LEG_M = 0.78
"""Thigh plus shin that a body of unknown unit is taken to have, in metres."""
MIN_UNIT_M, MAX_UNIT_M = 0.0008, 1.2
"""Units that are believed: millimetres to metres, with room for short and long legs."""
_MIN_LEG_M, _MAX_LEG_M = 0.2, 1.4
# Trunk and legs in one line within 45 degrees; the share of frames that make a judgement.
_STRAIGHT, _ENOUGH = 0.7, 0.05

# Rotations that bring an axis up. Z up is AMASS's turn, (x, y, z) -> (x, z, -y).
_TO_Y_UP: dict[str, Doubles] = {
    "+y": np.eye(3),
    "+z": np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]]),
    "-z": np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]),
    "-y": np.array([[1.0, 0, 0], [0, -1, 0], [0, 0, -1]]),
    "+x": np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]),
    "-x": np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]]),
}


class WorldFrames(TypedDict):
    """World rotations (L,J,3,3) and positions (L,J,3)."""

    rotations: Doubles
    positions: Doubles


def world_frames(parents: tuple[int, ...], rotations: Doubles, positions: Doubles) -> WorldFrames:
    """Forward kinematics of rotations (L,J,3,3) and positions (L,J,3) against the parent."""
    world, places = np.empty_like(rotations), np.empty_like(positions)
    for joint, parent in enumerate(parents):
        if parent < 0:
            world[:, joint], places[:, joint] = rotations[:, joint], positions[:, joint]
            continue
        world[:, joint] = world[:, parent] @ rotations[:, joint]
        turned = (world[:, parent] @ positions[:, joint, :, None])[..., 0]
        places[:, joint] = places[:, parent] + turned
    return {"rotations": world, "positions": places}


@dataclass(frozen=True, eq=False, kw_only=True)
class Rig:
    """A rig in motion, in its file's units and axes.

    names, parents (J), a parent before its children; rotations (L,J,3,3) and positions (L,J,3) in
    the world, the rotations all the identity in the rest pose.
    """

    names: tuple[str, ...]
    parents: tuple[int, ...]
    rotations: Doubles
    positions: Doubles
    fps: float
    warnings: tuple[str, ...] = ()

    def to_clip(
        self,
        name: str,
        *,
        source: str,
        licence: str = "unknown",
        unit_m: float | None = None,
        up: str | None = None,
        more: Mapping[str, str | float | int | bool] | None = None,
    ) -> SourceClip:
        """The clip in metres and Y up.

        unit_m: metres a unit where the format says so, else by the legs. up: "+y", "+z" ... where
        the format says so, else by the pose. `SourceError`: unknown_skeleton, bad_unit, mirrored,
        not_finite.
        """
        if not np.isfinite(self.positions).all() or not np.isfinite(self.rotations).all():
            raise SourceError("a frame holds NaN or infinite numbers", "not_finite")
        humanoid = find_humanoid(self.names, self.parents)
        notes = list(self.warnings)
        rest = self._rest()
        if up is None:
            up = self._up(humanoid, rest, notes)
        turn = _TO_Y_UP[up]
        unit_m = self._unit(humanoid, unit_m, notes)
        positions = (self.positions * unit_m) @ turn.T
        rotations = turn @ self.rotations @ turn.T
        check_handedness(humanoid, rest, self.positions)
        provenance: dict[str, str | float | int | bool] = {
            "source": source,
            "licence": licence,
            "up_axis": up,
            "unit_m": unit_m,
            "leg_length": humanoid.leg_length(positions),
            "fps_src": self.fps,
            "num_joints": len(self.names),
        }
        provenance |= dict(more or {})
        if notes:
            provenance["warnings"] = "; ".join(notes)
        return SourceClip(
            name=name,
            joint_names=self.names,
            parents=self.parents,
            rotations=float32(rotations),
            positions=float32(positions),
            fps=self.fps,
            provenance=provenance,
        )

    def _unit(self, humanoid: Humanoid, unit_m: float | None, notes: list[str]) -> float:
        leg = humanoid.leg_length(self.positions)
        if unit_m is not None and _MIN_LEG_M <= unit_m * leg <= _MAX_LEG_M:
            return unit_m
        by_leg = LEG_M / leg if leg > 0 else np.inf
        if not MIN_UNIT_M <= by_leg <= MAX_UNIT_M:
            raise SourceError(
                f"the legs are {leg:.4g} units long, so a unit would be {by_leg:.4g} m; allowed:"
                f" {MIN_UNIT_M} to {MAX_UNIT_M} m",
                "bad_unit",
            )
        if unit_m is not None:
            notes.append(
                f"in the format's unit the legs would be {unit_m * leg:.3g} m long; sized by the"
                " legs instead"
            )
        return float(by_leg)

    def _rest(self) -> Doubles:
        """Joints (J,3) of the rest pose, in the file's units and axes."""
        offsets = rest_offsets(self.rotations, self.positions, self.parents)
        return rest_positions(offsets, self.parents)

    def _up(self, humanoid: Humanoid, rest: Doubles, notes: list[str]) -> str:
        """The axis along which the trunk stands, over frames in which the legs carry it."""
        ankles, hips, top = humanoid.centres(self.positions)
        trunk = _unit(top - hips)
        rise = (hips - ankles) / max(humanoid.leg_length(self.positions), 1e-9)
        scores = {}
        for axis, turn in _TO_Y_UP.items():
            carried = rise @ turn[1] > 0.3
            scores[axis] = float(np.where(carried, trunk @ turn[1], 0.0).mean())
        best = max(scores, key=lambda axis: scores[axis])
        rest_up = body_axes(humanoid, rest)[:, 1]
        at_rest = max(_TO_Y_UP, key=lambda axis: float(rest_up @ _TO_Y_UP[axis][1]))
        if scores[best] < 0.3:
            notes.append(f"the body never stands: up taken from the rest pose, {at_rest}")
            return at_rest
        if best != at_rest:
            notes.append(f"up is {best} by the pose, {at_rest} by the rest pose")
        return best


def check_handedness(humanoid: Humanoid, rig_rest: Doubles, positions: Doubles) -> None:
    """`SourceError` (mirrored) when the toes point backwards, as in data of left-handed axes.

    Seen in the rest pose (J,3) where that stands upright, else in the frames (L,J,3) in which the
    body does.
    """
    for places in (rig_rest[None], positions):
        ankles, hips, top = humanoid.centres(places)
        leg = humanoid.leg_length(places)
        up = _unit(top - hips)
        front = _unit(np.cross(humanoid.left(places), up))
        standing = (_unit(hips - ankles) * up).sum(axis=-1) > _STRAIGHT
        wide = np.linalg.norm(humanoid.left(places), axis=-1) > 0.2 * leg
        frames = standing & wide
        if frames.sum() < max(1, _ENOUGH * len(places)):
            continue
        ahead = [
            ((places[:, tip] - places[:, humanoid.joints[f"{side}_Ankle"]]) * front).sum(axis=-1)
            for side, tip in zip("LR", humanoid.toe_tips, strict=True)
            if tip >= 0
        ]
        if ahead and float(np.median(np.stack(ahead)[:, frames])) < -0.05 * leg:
            raise SourceError(
                "the toes point backwards: left and right are swapped, or the axes are left-handed;"
                " export in right-handed axes",
                "mirrored",
            )
        return


def _unit(vectors: Doubles) -> Doubles:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
