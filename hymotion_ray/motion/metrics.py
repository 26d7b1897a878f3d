"""What a clip's joints say about how well it moves: the measures that papers print, and our own.

Knows one clip at a time, no reference, no text, no learned judge. Each field of `ClipMetrics` names
its source; lengths are metres on the clip's own body and Y is up. Measures that their source counts
per frame are taken at its frame rate (20), so that one number holds at every rate. Formulas follow
the sources' descriptions; numbers are comparable with tables made by the same tool only.

Shape letters: L frames, J = 22 body joints.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d

from hymotion_ray.motion.capsules import overlap_share
from hymotion_ray.motion.columns import sole_columns
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.quality import measure
from hymotion_ray.motion.skeleton import FEET, JOINT_NAMES, NUM_BODY_JOINTS, PARENTS, PELVIS

# `float` names a field below, so its annotations need another name for the type.
_Number = float
Array = NDArray[np.float64]

_PAPER_FPS = 20.0
_PEAK_SECONDS = 0.15
_STILL_M_S = 0.05
_CONTACT_STEP, _CONTACT_HEIGHT = 0.01, 0.02
_KIMODO_HEIGHT, _KIMODO_SPEED = 0.05, 0.2
_STANCE_SPEED, _STANCE_HEIGHT = 0.2, 0.10
# Largest turn of a joint from the T-pose in degrees. American Academy of Orthopaedic Surgeons,
# "Joint Motion: Method of Measuring and Recording" (1965): knee 135, hip 120, elbow 150, ankle 50,
# wrist 80, shoulder 135 across from the side; 25 more for soft tissue and for joints that share one
# of ours. Spine, neck and collar are ours: a share of the trunk's 80 and the neck's 45 each.
_LIMITS = {
    **{"Hip": 145.0, "Knee": 160.0, "Ankle": 75.0, "Foot": 75.0, "Collar": 60.0},
    **{"Shoulder": 160.0, "Elbow": 175.0, "Wrist": 105.0},
    **{"Spine1": 60.0, "Spine2": 60.0, "Spine3": 60.0, "Neck": 70.0, "Head": 70.0},
}


@dataclass(frozen=True, kw_only=True)
class ClipMetrics:
    """Measures of one clip; None where a clip has nothing to measure."""

    skate: _Number
    """Share of frame steps in which a toe under 5 cm goes at over 0.5 m/s, now and over a quarter
    second: Karunratanakul et al. 2023, guided motion diffusion, skating ratio."""
    skate_speed: _Number
    """Mean speed in m/s of toes under 5 cm: Kimodo's foot skate."""
    skate_contact: _Number | None
    """Share of a toe's frame steps under 5 cm in which it goes at over 0.2 m/s: Kimodo's ratio."""
    slide: _Number | None
    """Mean horizontal step in mm of a toe in contact, at 20 fps; in contact: it moves less than
    1 cm, or is less than 2 cm above the clip's lowest: MBench's Slide."""
    float: _Number
    """Share of frames in which no foot and no other part bears the body: `motion.quality`."""
    unsupported: _Number
    """Share of frames at 20 fps in which no toe is in contact, by the rule of `slide`: MBench's
    Float."""
    jitter: _Number
    """Mean third difference in 10 m/s^3: what human mesh recovery prints, as in GVHMR."""
    jitter_mm: _Number
    """Mean second difference in mm at 20 fps, of joints in the world plus of joints against the
    pelvis: MBench's Jitter."""
    dynamic_mm: _Number
    """Mean first difference likewise: MBench's Dynamic."""
    penetration: _Number | None
    """Mean depth in metres of the lower sole below the floor, which is where feet stand still: the
    median height of soles that are low and slow. The clip's lowest point would make it 0."""
    hover: _Number | None
    """Mean height in metres of the lower sole above that floor."""
    facing: _Number | None
    """Cosine of facing against travel: `motion.quality`."""
    bone_change: _Number
    """Largest change of a bone's length over the clip, as a share of it. 0 for rotations put
    through kinematics."""
    limit_excess: _Number
    """Mean over frames of how many degrees the worst joint is past its limit (see `_LIMITS`)."""
    overlap: _Number
    """Share of frames in which limbs or trunk cut into each other: `motion.capsules`."""
    speed_peak: _Number
    """Largest speed of the pelvis in m/s, meant over 0.15 s."""
    acceleration_peak: _Number
    """Largest acceleration of the pelvis in m/s^2, meant over 0.15 s."""
    static: _Number
    """Share of frame steps in which no joint goes at over 0.05 m/s."""
    loop_gap: _Number
    """Mean distance in metres between joints of the first and the last frame, against the pelvis
    and turned to face alike: 0 for a loop."""
    seam: _Number
    """Largest jump in mm at 20 fps: what all joints together leave the straight on by from one step
    to the next. A cut or a badly joined loop shows here."""


METRIC_NAMES = tuple(field.name for field in fields(ClipMetrics))


def clip_metrics(motion: Motion) -> ClipMetrics:
    """All measures of one clip of any length; a clip of one frame moves nowhere."""
    body = motion.joints[:, :NUM_BODY_JOINTS].cpu().double().numpy()
    quality = measure(motion)
    slow = at_rate(body, motion.fps, _PAPER_FPS)
    slide, unsupported = _slide(slow[:, FEET])
    penetration, hover = _floor_distance(body, motion)
    speed_peak, acceleration_peak = _pelvis_peaks(body[:, PELVIS], motion.fps)
    return ClipMetrics(
        skate=quality.skate,
        skate_speed=quality.skate_speed,
        skate_contact=_skate_contact(body[:, FEET], motion.fps),
        slide=slide,
        float=quality.float,
        unsupported=unsupported,
        jitter=quality.jitter,
        jitter_mm=_difference_mm(slow, 2),
        dynamic_mm=_difference_mm(slow, 1),
        penetration=penetration,
        hover=hover,
        facing=quality.facing,
        bone_change=_bone_change(body),
        limit_excess=_limit_excess(motion),
        overlap=overlap_share(body),
        speed_peak=speed_peak,
        acceleration_peak=acceleration_peak,
        static=_static(body, motion.fps),
        loop_gap=_loop_gap(body),
        seam=_seam(slow),
    )


def at_rate(points: Array, fps: float, wanted_fps: float) -> Array:
    """Points (L, ..., 3) by straight lines between frames at another rate; the first frame stays.

    As many frames as fit between the first and the last.
    """
    if abs(fps - wanted_fps) < 1e-6 or len(points) < 2:
        return points
    num_frames = int(np.floor((len(points) - 1) / fps * wanted_fps + 1e-9)) + 1
    place = np.minimum(np.arange(num_frames) * fps / wanted_fps, len(points) - 1)
    first = np.minimum(place.astype(np.int64), len(points) - 2)
    share = (place - first).reshape(-1, *[1] * (points.ndim - 1))
    between: Array = points[first] * (1 - share) + points[first + 1] * share
    return between


def sliding_against(motion: Motion, truth: Motion) -> float | None:
    """Mean step of the toes in metres where those of `truth` go less than 1 cm a frame.

    The foot sliding of human mesh recovery (GVHMR). Both at one frame rate, compared over the
    frames that both have; None where the reference never stands.
    """
    num_frames = min(motion.num_frames, truth.num_frames)
    own, real = (m.joints[:num_frames, FEET].double().numpy() for m in (motion, truth))
    stands = _lengths(np.diff(real, axis=0)) < _CONTACT_STEP
    steps = _lengths(np.diff(own, axis=0))
    return float(steps[stands].mean()) if stands.any() else None


def _skate_contact(toes: Array, fps: float) -> float | None:
    near = toes[..., 1] - toes[..., 1].min() < _KIMODO_HEIGHT
    near = near[1:] & near[:-1]
    speed = _lengths(np.diff(toes[..., [0, 2]], axis=0)) * fps
    return float((speed[near] > _KIMODO_SPEED).mean()) if near.any() else None


def _slide(toes: Array) -> tuple[float | None, float]:
    """Mean horizontal step of toes (L, 2, 3) in contact in mm, and the share without contact."""
    low = toes[..., 1] - toes[..., 1].min() < _CONTACT_HEIGHT
    if len(toes) < 2:
        return None, float(1 - low.any(axis=1).mean())
    steps = np.diff(toes, axis=0)
    contact = (_lengths(steps) < _CONTACT_STEP) | low[1:]
    unsupported = float(1 - contact.any(axis=1).mean())
    across = _lengths(steps[..., [0, 2]])
    return (1000 * float(across[contact].mean()) if contact.any() else None), unsupported


def _difference_mm(joints: Array, order: int) -> float:
    if len(joints) <= order:
        return 0.0
    against_pelvis = joints - joints[:, PELVIS, None]
    both = (np.diff(points, n=order, axis=0) for points in (joints, against_pelvis))
    return 1000 * float(sum(_lengths(steps).mean() for steps in both))


def _floor_distance(body: Array, motion: Motion) -> tuple[float | None, float | None]:
    """Depth below and height above the floor that feet stand still on, meant over frames."""
    soles = sole_columns(body.transpose(1, 2, 0), motion.skeleton).T
    if len(soles) < 2:
        return None, None
    speed = _lengths(np.diff(body[:, FEET], axis=0)) * motion.fps
    speed = np.concatenate([speed, speed[-1:]])
    standing = (speed < _STANCE_SPEED) & (soles - soles.min() < _STANCE_HEIGHT)
    if not standing.any():
        return None, None
    lowest = soles.min(axis=1) - np.median(soles[standing])
    return float(np.maximum(-lowest, 0).mean()), float(np.maximum(lowest, 0).mean())


def _pelvis_peaks(pelvis: Array, fps: float) -> tuple[float, float]:
    if len(pelvis) < 3:
        return 0.0, 0.0
    window = max(1, round(_PEAK_SECONDS * fps))
    speed = uniform_filter1d(_lengths(np.diff(pelvis, axis=0)) * fps, window, mode="nearest")
    bend = _lengths(np.diff(pelvis, n=2, axis=0)) * fps**2
    return float(speed.max()), float(uniform_filter1d(bend, window, mode="nearest").max())


def _bone_change(body: Array) -> float:
    bones = _lengths(body[:, 1:] - body[:, list(PARENTS[1:NUM_BODY_JOINTS])])
    return float((np.ptp(bones, axis=0) / np.maximum(bones.mean(axis=0), 1e-6)).max())


def _limit_excess(motion: Motion) -> float:
    rotations = motion.local_rotations().double().numpy()[:, 1:]
    cosine = (np.trace(rotations, axis1=-2, axis2=-1) - 1) / 2
    angles = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    limits = [_LIMITS[name.split("_")[-1]] for name in JOINT_NAMES[1:NUM_BODY_JOINTS]]
    return float(np.maximum(angles - limits, 0).max(axis=1).mean())


def _static(body: Array, fps: float) -> float:
    if len(body) < 2:
        return 1.0
    speed = _lengths(np.diff(body, axis=0)) * fps
    return float((speed.max(axis=1) < _STILL_M_S).mean())


def _loop_gap(body: Array) -> float:
    """Both ends against their pelvis, the last turned about Y to fit the first best."""
    first, last = (frame - frame[PELVIS] for frame in (body[0], body[-1]))
    # The turn about Y that brings `last` nearest to `first`, in the plane of x and z.
    dot = float((first[:, [0, 2]] * last[:, [0, 2]]).sum())
    cross = float((last[:, 2] * first[:, 0] - last[:, 0] * first[:, 2]).sum())
    angle = np.arctan2(cross, dot)
    c, s = np.cos(angle), np.sin(angle)
    turned = last @ np.array([[c, 0, -s], [0, 1, 0], [s, 0, c]])
    return float(_lengths(first - turned).mean())


def _seam(joints: Array) -> float:
    if len(joints) < 3:
        return 0.0
    return 1000 * float(_lengths(np.diff(joints, n=2, axis=0)).mean(axis=1).max())


def _lengths(vectors: Array) -> Array:
    lengths: Array = np.sqrt(np.square(vectors).sum(axis=-1))
    return lengths
