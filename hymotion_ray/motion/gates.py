"""Quality gates: numbers measured on one clip, and the limits that some of them may not pass.

It knows what makes a clip unfit to train on (not finite, too short, the wrong frame rate, jumps,
nothing happening, upside down, a poor fit, sliding, floating) and gives a reason for each. It knows
no source format and no other clip: duplicates are the engine's business.

Two steps, so that a number is kept also where its limit holds: `measure_clip`, then `judge`.
Speeds and lengths are those of the source's body: our numbers divided by `scale`.

Shape letters: L frames, J = 22 body joints.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hymotion_ray.config.ingest import GateConfig
from hymotion_ray.motion.columns import local_rotations, sole_columns
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.quality import measure
from hymotion_ray.motion.skeleton import (
    ANKLES,
    FEET,
    HIPS,
    JOINT_NAMES,
    NUM_BODY_JOINTS,
    PELVIS,
    Skeleton,
)

# `float` names a field below, so its annotations need another name for the type.
_Number = float
Array = NDArray[np.float64]

GRAVITY = 9.81
"""m/s^2."""
# Body segments (proximal joint, distal joint, share of the body's mass, centre as a share of the
# way): D. A. Winter, "Biomechanics and Motor Control of Human Movement", table 4.1, after Dempster,
# with the trunk's mass between pelvis and neck, the head's at the head joint and the hand's at the
# wrist, where this body has its joints.
_SEGMENTS = (
    *((f"{s}_Hip", f"{s}_Knee", 0.100, 0.433) for s in "LR"),
    *((f"{s}_Knee", f"{s}_Ankle", 0.0465, 0.433) for s in "LR"),
    *((f"{s}_Ankle", f"{s}_Foot", 0.0145, 0.5) for s in "LR"),
    *((f"{s}_Shoulder", f"{s}_Elbow", 0.028, 0.436) for s in "LR"),
    *((f"{s}_Elbow", f"{s}_Wrist", 0.016, 0.430) for s in "LR"),
    *((f"{s}_Wrist", f"{s}_Wrist", 0.006, 0.0) for s in "LR"),
    ("Pelvis", "Neck", 0.497, 0.5),
    ("Head", "Head", 0.081, 0.0),
)


def _mass_shares() -> Array:
    """Share (22,) of the body's mass that each joint stands for, by the segments above."""
    shares = np.zeros(NUM_BODY_JOINTS)
    for proximal, distal, mass, share in _SEGMENTS:
        shares[JOINT_NAMES.index(proximal)] += mass * (1 - share)
        shares[JOINT_NAMES.index(distal)] += mass * share
    return shares / shares.sum()


_MASS_SHARES = _mass_shares()
# A flight: the whole body this high, for so long, between two touches of the floor; its mass centre
# must rise and fall by so much, follow a parabola this closely and take both toes along by such a
# share of its rise to be a measure of gravity.
_FLIGHT_METRES = 0.06
_FLIGHT_SECONDS = 0.12
_FLIGHT_RISE = 0.08
_FLIGHT_FIT = 0.995
_FLIGHT_TOES = 0.6
_TRAVEL_SECONDS = 0.5
_UPSIDE_DOWN = 0.15  # metres; less is lying
_FLESH = 0.08  # metres of body around a joint that is no foot
_NO_FEET = [j for j in range(NUM_BODY_JOINTS) if j not in (*ANKLES, *FEET)]


@dataclass(frozen=True, kw_only=True)
class ClipNumbers:
    """What the gates go by, and the quality numbers that a shard keeps."""

    num_frames: int
    """Frames."""
    fall: _Number | None
    """Downward acceleration of the mass centre in flight over 9.81 m/s^2, the median of the clip's
    flights; None where it never leaves the floor for long."""
    travel: _Number
    """Largest speed of the pelvis over the ground in m/s, meant over half a second."""
    speed: _Number
    """Largest speed of a joint from one frame to the next, m/s."""
    root_speed: _Number
    """Largest speed of the pelvis from one frame to the next, m/s."""
    turn: _Number
    """Largest turn of a joint against its parent from one frame to the next, rad/s."""
    static_share: _Number
    """Share of frames in which no joint moves, 0 to 1."""
    upside_down: _Number
    """Share of frames in which the head is well below the hips, 0 to 1."""
    fit_error: _Number
    """Mean distance in metres between our joints and the source's after retargeting."""
    skate: _Number
    """Share of frames in which a foot near the floor slides (`motion.quality`)."""
    skate_speed: _Number
    """Mean speed in m/s of toes near the floor."""
    float: _Number
    """Share of frames in which nothing bears the body."""
    hover: _Number
    """Median height in metres of the body's lowest part above the clip's floor."""
    jitter: _Number
    """Mean third difference of the joints, 10 m/s^3."""
    facing: _Number | None
    """Cosine of facing against travel; None where the clip stays in place."""

    def to_mapping(self) -> dict[str, int | _Number | None]:
        """Numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class Finding:
    """One gate that a clip does not pass: a stable code, the number, its limit, and words."""

    code: str
    value: float
    limit: float
    message: str


def is_finite(*arrays: Tensor | NDArray[np.floating]) -> bool:
    """Whether every number of some arrays is finite."""
    return all(_all_finite(np.asarray(array)) for array in arrays)


def _all_finite(array: NDArray[np.floating]) -> bool:
    """A sum tells in one pass; only one that overflows needs the second."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def measure_clip(
    motion: Motion, *, scale: float = 1.0, fit_error: float = 0.0, still_m_s: float = 0.02
) -> ClipNumbers:
    """The numbers of one finite clip.

    scale: our body's size over the source's; fit_error: what retargeting reported, in metres;
    still_m_s: speed under which a joint does not move.
    """
    joints = motion.joints[:, :NUM_BODY_JOINTS].numpy().transpose(1, 2, 0).astype(np.float64)
    body: Array = joints / scale  # (22, 3, L)
    quality = measure(motion)
    speed = np.sqrt(np.square(np.diff(body, axis=2)).sum(axis=1)) * motion.fps  # (22, L - 1)
    clearance = _clearance(joints, motion.skeleton) / scale
    hips = body[list(HIPS), 1].mean(axis=0)
    head = body[JOINT_NAMES.index("Head"), 1]
    return ClipNumbers(
        num_frames=motion.num_frames,
        fall=fall_share(body.transpose(2, 0, 1), clearance, motion.fps),
        travel=_travel(body[PELVIS], motion.fps),
        speed=float(speed.max(initial=0.0)),
        root_speed=float(speed[PELVIS].max(initial=0.0)),
        turn=_turn(motion),
        static_share=float((speed.max(axis=0) < still_m_s).mean()) if speed.size else 1.0,
        upside_down=float((head < hips - _UPSIDE_DOWN).mean()),
        fit_error=fit_error,
        skate=quality.skate,
        skate_speed=quality.skate_speed,
        float=quality.float,
        hover=float(np.median(clearance)),
        jitter=quality.jitter,
        facing=quality.facing,
    )


def judge(numbers: ClipNumbers, gates: GateConfig) -> list[Finding]:
    """The gates that a clip does not pass, gravest first; none for a fit clip."""
    n, g = numbers, gates
    found = [
        _over("too_short", g.min_frames - n.num_frames, 0, f"{n.num_frames} frames at 30 fps"),
        _over("wrong_fps", n.travel, g.max_travel_m_s, "m/s of travel over half a second"),
        _over("speed_outlier", n.root_speed, g.max_root_speed_m_s, "m/s of the pelvis in a frame"),
        _over("speed_outlier", n.speed, g.max_speed_m_s, "m/s of a joint in a frame"),
        _over("speed_outlier", n.turn, g.max_turn_rad_s, "rad/s of a joint in a frame"),
        _over("static", n.static_share, g.max_static_share, "of the frames without movement"),
        _over("upside_down", n.upside_down, g.max_upside_down, "of the frames head under hips"),
        _over("fit_error", n.fit_error, g.max_fit_error_m, "m between our joints and the source's"),
        _over("sliding", n.skate, g.max_skate, "of the frames with a sliding foot"),
        _over("floating", n.hover, g.max_hover_m, "m above its floor, the median"),
    ]
    if n.fall is not None and not g.min_fall <= n.fall <= g.max_fall:
        limit = g.min_fall if n.fall < g.min_fall else g.max_fall
        words = f"falls at {n.fall:.2f} of gravity; allowed: {g.min_fall:g} to {g.max_fall:g}"
        found.insert(1, Finding("wrong_fps", n.fall, limit, words))
    return [finding for finding in found if finding is not None]


def fall_share(body: Array, clearance: Array, fps: float) -> float | None:
    """Downward acceleration in flight over 9.81 m/s^2: the median of a clip's flights, or None.

    body: (L, 22, 3) joints in metres; clearance: (L,) height of the lowest part above the floor.
    The mass centre of each flight is fitted by a parabola. One that follows none closely, or with a
    foot that stays where it is (tiptoe, a box), is no measure of gravity and is left out.
    """
    up = np.concatenate([[False], clearance > _FLIGHT_METRES, [False]])
    edges = np.flatnonzero(np.diff(up.astype(np.int8)))
    if not edges.size:
        return None
    height = mass_centre(body)[:, 1]
    shares = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        # It must begin and end on the floor: a clip cut in mid-air tells less.
        is_whole = start > 0 and end < len(height)
        if not is_whole or end - start < max(4, _FLIGHT_SECONDS * fps):
            continue
        times = np.arange(end - start) / fps
        curve = height[start:end]
        coefficients = np.polyfit(times, curve, 2)
        rest = np.square(curve - np.polyval(coefficients, times)).sum()
        spread = np.square(curve - curve.mean()).sum()
        rise = np.ptp(curve)
        toes = np.ptp(body[start:end, FEET, 1], axis=0).min()
        apex = -coefficients[1] / (2 * coefficients[0]) if coefficients[0] else -1.0
        flies = 0.2 < apex / times[-1] < 0.8 and rise > _FLIGHT_RISE and toes > _FLIGHT_TOES * rise
        if flies and rest < (1 - _FLIGHT_FIT) * spread:
            shares.append(-2 * coefficients[0] / GRAVITY)
    return float(np.median(shares)) if shares else None


def mass_centre(body: Array) -> Array:
    """Centre of mass (L, 3) of joints (L, 22, 3), by Winter's segment masses."""
    centre: Array = np.tensordot(body, _MASS_SHARES, axes=(1, 0))
    return centre


def _clearance(joints: Array, skeleton: Skeleton) -> Array:
    """Height (L,) of the lowest part of the body above the clip's lowest sole, never below 0.

    joints: (22, 3, L). Feet by their soles, other joints by themselves.
    """
    soles = sole_columns(joints, skeleton)
    lowest = np.minimum(soles.min(axis=0), joints[_NO_FEET, 1].min(axis=0) - _FLESH)
    clearance: Array = np.maximum(lowest - soles.min(), 0)
    return clearance


def _over(code: str, value: float, limit: float, unit: str) -> Finding | None:
    if not value > limit:
        return None
    if code == "too_short":
        return Finding(code, value, limit, f"{unit}; allowed: {value:g} more at the least")
    return Finding(code, value, limit, f"{value:.3g} {unit}; allowed: up to {limit:g}")


def _travel(pelvis: Array, fps: float) -> float:
    """Largest speed over the ground of the pelvis (3, L), meant over half a second (over the clip,
    if shorter).
    """
    stride = max(1, min(round(_TRAVEL_SECONDS * fps), pelvis.shape[1] - 1))
    steps = pelvis[:, stride:] - pelvis[:, :-stride]
    return float(np.hypot(steps[0], steps[2]).max(initial=0.0)) * fps / stride


def _turn(motion: Motion) -> float:
    """Largest angle between a joint's rotations in neighbouring frames, in rad/s."""
    matrix = local_rotations(motion.rot6d.numpy())
    if motion.num_frames < 2:
        return 0.0
    trace = np.einsum("jikl,jikl->jl", matrix[..., 1:], matrix[..., :-1])
    return float(np.arccos(np.clip((trace.min() - 1) / 2, -1, 1))) * motion.fps
