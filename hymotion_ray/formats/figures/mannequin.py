"""The figure that is drawn when a model brings no body mesh: a jointed mannequin on a skeleton.

Knows how to loft tapered limbs, a trunk, a head, hands and feet around the rest positions of the 22
body joints. Proportions are our own drawing, not measured data. Does not know any file format.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from hymotion_ray.formats.figures.figure import (
    BODY,
    FACE,
    JOINT,
    LEFT,
    RIGHT,
    Figure,
    from_body_mesh,
    strongest,
    vertex_normals,
)
from hymotion_ray.formats.figures.loft import Doubles, Part, Shape, ball, loft
from hymotion_ray.motion.body import BodyMesh
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS, Skeleton

_LEG = 0.78  # leg length in metres that the widths below were drawn for
(
    _PELVIS, _L_HIP, _R_HIP, _SPINE1, _L_KNEE, _R_KNEE, _SPINE2, _L_ANKLE, _R_ANKLE, _SPINE3,
    _L_FOOT, _R_FOOT, _NECK, _L_COLLAR, _R_COLLAR, _HEAD, _L_SHOULDER, _R_SHOULDER, _L_ELBOW,
    _R_ELBOW, _L_WRIST, _R_WRIST,
) = range(NUM_BODY_JOINTS)  # fmt: skip
_MIDDLE1 = {_L_WRIST: 25, _R_WRIST: 40}
_THUMB = {_L_WRIST: (34, 36), _R_WRIST: (49, 51)}


def mannequin(skeleton: Skeleton, num_sides: int = 14) -> Figure:
    """The mannequin on `skeleton`; `num_sides` edges round a limb. Cached by the rest positions."""
    rest = np.ascontiguousarray(skeleton.rest, dtype=np.float32)
    return _mannequin(rest.tobytes(), num_sides)


def figure_of(skeleton: Skeleton, mesh: BodyMesh | None) -> Figure:
    """The model's body when there is one, else the mannequin."""
    return mannequin(skeleton) if mesh is None else from_body_mesh(mesh)


@lru_cache(maxsize=16)
def _mannequin(rest_bytes: bytes, num_sides: int) -> Figure:
    rest = np.frombuffer(rest_bytes, dtype=np.float32).reshape(-1, 3).astype(np.float64)
    scale = max(Skeleton(rest).leg_length, 0.05) / _LEG
    parts = [_trunk(rest, scale, num_sides), _neck(rest, scale, num_sides)]
    parts += _head(rest, scale, num_sides)
    for side in (LEFT, RIGHT):
        parts += _arm(rest, scale, side, num_sides) + _leg(rest, scale, side, num_sides)
    return _join(parts)


def _join(parts: list[Part]) -> Figure:
    starts = np.cumsum([0] + [len(part.vertices) for part in parts])
    vertices = np.concatenate([part.vertices for part in parts]).astype(np.float32)
    faces = np.concatenate([p.faces + s for p, s in zip(parts, starts, strict=False)]).astype(
        np.int32
    )
    dense = np.concatenate([part.weights for part in parts])
    skin_indices, skin_weights = strongest(dense)
    tones = np.concatenate([np.full(len(part.vertices), part.tone) for part in parts])
    return Figure(
        vertices=vertices,
        normals=vertex_normals(vertices, faces),
        faces=faces,
        skin_indices=skin_indices,
        skin_weights=skin_weights,
        tones=tones.astype(np.uint8),
    )


# --- the parts; widths in metres for a 0.78 m leg -------------------------------------------------


def _trunk(rest: Doubles, scale: float, num_sides: int) -> Part:
    """From the crotch to the base of the neck in one piece that bends with the spine."""
    hip_y, shoulder_y = rest[[_L_HIP, _R_HIP], 1].mean(), rest[[_L_SHOULDER, _R_SHOULDER], 1].mean()
    middle = rest[_PELVIS, 0]
    span = np.abs(rest[[_L_SHOULDER, _R_SHOULDER], 0] - middle).mean()
    hips = np.abs(rest[[_L_HIP, _R_HIP], 0] - middle).mean()
    waist_y, chest_y = rest[_SPINE1, 1], rest[_SPINE3, 1]
    s = scale
    # height, half width, half depth, centre z relative to the spine
    rings = np.array([
        (hip_y - 0.100 * s, 0.018 * s, 0.034 * s, 0.000),
        (hip_y - 0.082 * s, 0.036 * s, 0.058 * s, 0.000),
        (hip_y - 0.030 * s, 0.60 * hips + 0.034 * s, 0.092 * s, -0.004),
        (hip_y + 0.025 * s, hips + 0.060 * s, 0.106 * s, -0.004),
        (hip_y + 0.070 * s, hips + 0.068 * s, 0.102 * s, 0.002),
        (waist_y + 0.035 * s, hips + 0.044 * s, 0.086 * s, 0.008),
        (rest[_SPINE2, 1] + 0.040 * s, hips + 0.052 * s, 0.092 * s, 0.012),
        (chest_y + 0.015 * s, 0.80 * span, 0.104 * s, 0.015),
        (0.45 * chest_y + 0.55 * shoulder_y + 0.015 * s, 0.95 * span, 0.112 * s, 0.018),
        (shoulder_y + 0.000 * s, 0.97 * span, 0.094 * s, 0.006),
        (shoulder_y + 0.036 * s, 0.80 * span, 0.076 * s, -0.004),
        (shoulder_y + 0.062 * s, 0.48 * span, 0.062 * s, -0.008),
        (shoulder_y + 0.080 * s, 0.060 * s, 0.052 * s, -0.008),
    ])  # fmt: skip
    rings = rings[np.argsort(rings[:, 0], kind="stable")]
    spine_z = np.interp(
        rings[:, 0], *_sorted(rest[[_PELVIS, _SPINE1, _SPINE2, _SPINE3, _NECK]][:, [1, 2]])
    )
    centres = np.stack(
        [np.full(len(rings), middle), rings[:, 0], 0.5 * spine_z + rings[:, 3] * s], axis=1
    )
    vertices, faces = loft(
        centres, rings[:, 1], rings[:, 2], (1, 0, 0), (0, 0, 1), num_sides + 6, squareness=2.6
    )
    knots = [
        (_PELVIS, rest[_PELVIS, 1]), (_SPINE1, rest[_SPINE1, 1] + 0.02 * s),
        (_SPINE2, rest[_SPINE2, 1] + 0.04 * s), (_SPINE3, chest_y + 0.09 * s),
    ]  # fmt: skip
    weights = _blend(vertices[:, 1], knots)
    # The corners of the shoulders go half way with the collar bones.
    for collar, sign in ((_L_COLLAR, 1), (_R_COLLAR, -1)):
        beside = sign * (vertices[:, 0] - middle)
        out = np.clip((beside - 0.55 * span) / (0.45 * span + 1e-6), 0, 1)
        up = np.clip((vertices[:, 1] - chest_y - 0.06 * s) / (0.10 * s), 0, 1)
        share = (0.6 * out * up)[:, None]
        weights *= 1 - share
        weights[:, collar] += share[:, 0]
    return Part(vertices, faces, weights, BODY)


def _sorted(pairs: Doubles) -> tuple[Doubles, Doubles]:
    ordered = pairs[np.argsort(pairs[:, 0])]
    return ordered[:, 0], ordered[:, 1]


def _blend(height: Doubles, knots: list[tuple[int, float]]) -> Doubles:
    """(V,22) weights that pass linearly from one joint to the next between their heights."""
    weights = np.zeros((len(height), NUM_BODY_JOINTS))
    levels = np.maximum.accumulate([level for _, level in knots]) + 1e-6 * np.arange(len(knots))
    place = np.interp(height, levels, np.arange(len(knots)))
    for k, (joint, _) in enumerate(knots):
        weights[:, joint] = np.clip(1 - np.abs(place - k), 0, 1)
    return weights


def _rigid(shape: Shape, joint: int, tone: int) -> Part:
    vertices, faces = shape
    weights = np.zeros((len(vertices), NUM_BODY_JOINTS))
    weights[:, joint] = 1
    return Part(vertices, faces, weights, tone)


def _neck(rest: Doubles, scale: float, num_sides: int) -> Part:
    start, end = rest[_NECK] - (0, 0.02 * scale, 0.0), rest[_HEAD] + (0, 0.05 * scale, 0)
    shape = _limb(start, end, [0.056, 0.050, 0.048, 0.050], scale, num_sides, (0, 0, 1))
    part = _rigid(shape, _NECK, JOINT)
    knots = [(_SPINE3, start[1]), (_NECK, rest[_NECK, 1] + 0.04 * scale), (_HEAD, end[1])]
    return Part(part.vertices, part.faces, _blend(part.vertices[:, 1], knots), JOINT)


def _head(rest: Doubles, scale: float, num_sides: int) -> list[Part]:
    """Skull and jaw in one loft, and a dark visor that shows where the figure looks."""
    base = rest[_HEAD] + np.array((0, 0.0, 0.012)) * scale
    profile = np.array([  # height, half width, half depth, centre z
        (-0.030, 0.012, 0.016, 0.052), (-0.022, 0.036, 0.040, 0.036), (0.005, 0.056, 0.068, 0.018),
        (0.045, 0.068, 0.088, 0.004), (0.090, 0.075, 0.097, -0.002), (0.130, 0.074, 0.096, -0.005),
        (0.165, 0.063, 0.084, -0.007), (0.190, 0.042, 0.058, -0.008), (0.200, 0.014, 0.020, -0.008),
    ]) * scale  # fmt: skip
    centres = base + np.stack([np.zeros(len(profile)), profile[:, 0], profile[:, 3]], axis=1)
    skull = loft(centres, profile[:, 1], profile[:, 2], (1, 0, 0), (0, 0, 1), num_sides + 4)
    visor = ball(
        base + np.array((0, 0.093, 0.044)) * scale,
        np.array((0.064, 0.024, 0.062)) * scale,
        num_sides,
        squareness=3.0,
    )
    return [_rigid(skull, _HEAD, BODY), _rigid(visor, _HEAD, FACE)]


def _unit(vector: Doubles, otherwise: ArrayLike) -> Doubles:
    """The vector at length 1; `otherwise` where it has no direction (joints that coincide)."""
    length = np.linalg.norm(vector)
    chosen = vector if length > 1e-6 else np.asarray(otherwise, dtype=np.float64)
    return chosen / np.linalg.norm(chosen)


def _limb(
    start: Doubles,
    end: Doubles,
    radii: list[float],
    scale: float,
    num_sides: int,
    front: tuple[float, float, float],
    flatness: float = 1.0,
    bulge: list[float] | None = None,
) -> Shape:
    """A tapered limb with rounded ends; `bulge` moves ring centres along `front`, in metres."""
    axis = end - start
    along = _unit(axis, (0, -1, 0))
    side = _unit(np.cross(along, front), (1, 0, 0))
    ahead = np.cross(side, along)
    place = np.linspace(0, 1, len(radii))
    centres = start + place[:, None] * axis
    widths = np.array(radii) * scale
    if bulge is not None:
        centres = centres + np.array(bulge)[:, None] * scale * ahead
    first, last = (0.45 * widths[0] * along, 0.45 * widths[-1] * along)
    centres = np.concatenate([[centres[0] - first], centres, [centres[-1] + last]])
    widths = np.concatenate([[0.55 * widths[0]], widths, [0.55 * widths[-1]]])
    return loft(centres, widths, widths * flatness, side, ahead, num_sides)


def _arm(rest: Doubles, scale: float, side: int, num_sides: int) -> list[Part]:
    left = side == LEFT
    shoulder, elbow, wrist = (
        (_L_SHOULDER, _L_ELBOW, _L_WRIST) if left else (_R_SHOULDER, _R_ELBOW, _R_WRIST)
    )
    a, b, c = rest[shoulder], rest[elbow], rest[wrist]
    reach = b - a
    upper = _limb(
        a + 0.10 * reach,
        b - 0.10 * reach,
        [0.046, 0.051, 0.049, 0.043, 0.037],
        scale,
        num_sides,
        (0, 0, 1),
    )
    fore = _limb(
        b + 0.12 * (c - b),
        c - 0.08 * (c - b),
        [0.037, 0.043, 0.039, 0.031, 0.027],
        scale,
        num_sides,
        (0, 0, 1),
    )
    return [
        _rigid(ball(a, 0.058 * scale, num_sides), shoulder, JOINT),
        _rigid(upper, shoulder, BODY),
        _rigid(ball(b, 0.039 * scale, num_sides), elbow, JOINT),
        _rigid(fore, elbow, side),
        _rigid(ball(c, 0.028 * scale, num_sides), wrist, JOINT),
        *_hand(rest, scale, wrist, num_sides),
    ]


def _hand(rest: Doubles, scale: float, wrist: int, num_sides: int) -> list[Part]:
    """A mitten: flat palm with the fingers together, and a thumb."""
    palm_end = rest[_MIDDLE1[wrist]]
    outward = 1.0 if wrist == _L_WRIST else -1.0
    along = _unit(palm_end - rest[wrist], (outward, 0, 0))
    start = rest[wrist] + 0.022 * scale * along
    mitten = _limb(
        start, rest[wrist] + 0.165 * scale * along,
        [0.028, 0.041, 0.043, 0.040, 0.032, 0.018], scale, num_sides, (0, 1, 0), flatness=0.42,
    )  # fmt: skip
    forward = np.array((0, 0, 1.0))
    base, tip = (rest[j] for j in _THUMB[wrist])
    direction = _unit(tip - base, along + forward)
    thumb = _limb(
        start + 0.016 * forward * scale, base + 0.062 * scale * direction,
        [0.017, 0.018, 0.015, 0.011], scale, max(8, num_sides - 4), (0, 1, 0),
    )  # fmt: skip
    return [_rigid(mitten, wrist, BODY), _rigid(thumb, wrist, BODY)]


def _leg(rest: Doubles, scale: float, side: int, num_sides: int) -> list[Part]:
    left = side == LEFT
    hip, knee, ankle, toe = (
        (_L_HIP, _L_KNEE, _L_ANKLE, _L_FOOT) if left else (_R_HIP, _R_KNEE, _R_ANKLE, _R_FOOT)
    )
    a, b, c = rest[hip], rest[knee], rest[ankle]
    thigh = _limb(
        a + 0.06 * (b - a), b - 0.07 * (b - a), [0.079, 0.083, 0.078, 0.067, 0.056, 0.050],
        scale, num_sides, (0, 0, 1), bulge=[0.0, 0.006, 0.008, 0.006, 0.002, 0.0],
    )  # fmt: skip
    shin = _limb(
        b + 0.08 * (c - b), c - 0.06 * (c - b), [0.048, 0.055, 0.057, 0.049, 0.038, 0.033],
        scale, num_sides, (0, 0, 1), bulge=[0.0, -0.008, -0.014, -0.010, -0.004, 0.0],
    )  # fmt: skip
    return [
        _rigid(ball(a, 0.070 * scale, num_sides), hip, JOINT),
        _rigid(thigh, hip, BODY),
        _rigid(ball(b, 0.051 * scale, num_sides), knee, JOINT),
        _rigid(shin, knee, side),
        _rigid(ball(c, 0.036 * scale, num_sides), ankle, JOINT),
        *_shoe(rest, scale, ankle, toe, num_sides),
    ]


def _shoe(rest: Doubles, scale: float, ankle: int, toe: int, num_sides: int) -> list[Part]:
    """Heel to ball on the ankle, the toes on the foot joint; both soles lie on the rest floor."""
    floor = min(rest[_L_FOOT, 1], rest[_R_FOOT, 1]) - 0.033 * scale
    heel, ball_of_foot = rest[ankle], rest[toe]
    ahead = _unit(np.array((ball_of_foot[0] - heel[0], 0, ball_of_foot[2] - heel[2])), (0, 0, 1))
    side = np.cross((0, 1, 0), ahead)
    length = float((ball_of_foot - heel) @ ahead)
    s = scale
    back = [  # along, half width, top height
        (-0.062 * s, 0.020 * s, 0.040 * s), (-0.055 * s, 0.032 * s, 0.066 * s),
        (-0.015 * s, 0.037 * s, 0.090 * s), (0.40 * length, 0.041 * s, 0.082 * s),
        (0.80 * length, 0.046 * s, 0.060 * s), (length, 0.047 * s, 0.050 * s),
    ]  # fmt: skip
    front = [
        (length - 0.012 * s, 0.045 * s, 0.048 * s), (length + 0.025 * s, 0.046 * s, 0.043 * s),
        (length + 0.055 * s, 0.038 * s, 0.035 * s), (length + 0.074 * s, 0.020 * s, 0.024 * s),
    ]  # fmt: skip
    parts = []
    for joint, rings, tone in ((ankle, back, BODY), (toe, front, JOINT)):
        along, widths, tops = np.array(rings).T
        centres = np.array((heel[0], floor, heel[2])) + along[:, None] * ahead
        centres[:, 1] += tops / 2
        shape = loft(centres, widths, tops / 2, side, (0, 1, 0), num_sides, squareness=3.2)
        parts.append(_rigid(shape, joint, tone))
    return parts
