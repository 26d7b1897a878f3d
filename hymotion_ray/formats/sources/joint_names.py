"""Which joints of a rig are hips, knees, ankles, shoulders, elbows, wrists and head, by name.

Knows the words of the families that motion collections use. What names leave open (which joint is
the pelvis, which the chest, what lies between) is read off the tree. Knows no rotations.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from hymotion_ray.errors import SourceError
from hymotion_ray.motion.humanoid import Humanoid

# Per joint of ours the words that name it once side, prefix and separators are gone, best first.
# Where two families use one word for two joints, the order settles it: `leg` is the shin beside an
# `upleg` and the thigh beside a `shin`, `foot` is the toe beside an `ankle`, `shoulder` is the
# collar beside an `arm`.
_WORDS: dict[str, tuple[str, ...]] = {
    # MotionBuilder (CMU, Mixamo, LaFAN1, Rokoko, FAIR) | VRM, Unity, Xsens, Bandai, KayKit |
    # MakeHuman | Biped, Unreal, Rigify, DAZ | ASF | SOMA | SMPL, CMU, 100STYLE, DeepMimic, ours
    "Hip": ("upleg", "upperleg", "upperleg01", "thigh", "femur", "leg", "hip"),
    "Knee": ("shin", "lowleg", "lowerleg", "lowerleg01", "loleg", "calf", "tibia", "leg", "knee"),
    "Ankle": ("ankle", "foot"),
    "Foot": ("toe", "toes", "toebase", "toe0", "ball", "toe31", "foot"),
    "Shoulder": ("arm", "uparm", "upperarm", "upperarm01", "humerus", "shldr", "shoulder"),
    "Elbow": ("forearm", "lowarm", "lowerarm", "lowerarm01", "loarm", "radius", "elbow"),
    "Wrist": ("wrist", "hand"),
}
_HEAD = ("head",)
_REQUIRED = ("Hip", "Knee", "Ankle", "Shoulder", "Elbow", "Wrist")
_KNOWN_WORDS = frozenset(word for words in _WORDS.values() for word in words)

_NAMESPACE = re.compile(r"^.*[:|]")
_PREFIX = re.compile(
    r"^(mixamorig\d*_?|bip\d*[ _]?|fk_|def[-_]|valvebiped[._]bip\d*_)", re.IGNORECASE
)
_SUFFIX = re.compile(r"_(jnt|joint|bone)$", re.IGNORECASE)
_SIDES = (
    re.compile(r"^(?P<side>left|right)[ _.-]?(?P<word>.+)$", re.IGNORECASE),
    re.compile(r"^(?P<word>.+?)[ _.-]?(?P<side>left|right)$", re.IGNORECASE),
    re.compile(r"^(?P<side>[lr])[ _.-]?(?P<word>.+)$", re.IGNORECASE),
    re.compile(r"^(?P<word>.+?)[ _.-](?P<side>[lr])$", re.IGNORECASE),
)


def find_humanoid(names: Sequence[str], parents: Sequence[int]) -> Humanoid:
    """Which joint is which; `SourceError` (unknown_skeleton) names what is missing."""
    sided, head = _by_word(names)
    joints: dict[str, int] = {}
    missing = []
    for side in "LR":
        for part in _WORDS:
            taken = set(joints.values())
            found = [sided[side, w] for w in _WORDS[part] if (side, w) in sided]
            free = [j for j in found if j not in taken]
            if free:
                joints[f"{side}_{part}"] = free[0]
            elif part in _REQUIRED:
                missing.append(f"{'left' if side == 'L' else 'right'} {part.lower()}")
        _drop_unconnected_toe(joints, side, parents)
    if not missing:
        missing = [
            f"a chain from {side}_{upper} to {side}_{lower}"
            for side in "LR"
            for chain in (("Hip", "Knee", "Ankle"), ("Shoulder", "Elbow", "Wrist"))
            for upper, lower in itertools.pairwise(chain)
            if joints[f"{side}_{upper}"] not in _line(joints[f"{side}_{lower}"], parents)
        ]
    if missing:
        raise SourceError(
            f"the skeleton is not known: no {', '.join(missing)} among its joints"
            f" {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}",
            "unknown_skeleton",
        )
    return _with_trunk(joints, head, names, parents)


def _by_word(names: Sequence[str]) -> tuple[dict[tuple[str, str], int], int]:
    """Joints by side and word, and the head (-1 without one); of equal ones the shortest name."""
    sided: dict[tuple[str, str], int] = {}
    head = -1
    for j, name in enumerate(names):
        bare = _SUFFIX.sub("", _PREFIX.sub("", _NAMESPACE.sub("", name)))
        if _plain(bare) in _HEAD and (head < 0 or len(name) < len(names[head])):
            head = j
        for pattern in _SIDES:
            match = pattern.match(bare)
            if match is None or _plain(match["word"]) not in _KNOWN_WORDS:
                continue
            key = (match["side"][0].upper(), _plain(match["word"]))
            if key not in sided or len(name) < len(names[sided[key]]):
                sided[key] = j
            break
    return sided, head


def _plain(word: str) -> str:
    return re.sub(r"[ _.-]", "", word).lower()


def _drop_unconnected_toe(joints: dict[str, int], side: str, parents: Sequence[int]) -> None:
    toe, ankle = joints.get(f"{side}_Foot"), joints.get(f"{side}_Ankle")
    if toe is not None and (ankle is None or ankle not in _line(toe, parents)):
        del joints[f"{side}_Foot"]


def _line(joint: int, parents: Sequence[int]) -> list[int]:
    """A joint and all above it, up to the root."""
    line = [joint]
    while parents[line[-1]] >= 0:
        line.append(parents[line[-1]])
    return line


def _meeting(a: int, b: int, parents: Sequence[int]) -> int:
    above = set(_line(a, parents))
    return next((j for j in _line(b, parents) if j in above), -1)


def _between(top: int, bottom: int, parents: Sequence[int]) -> tuple[int, ...]:
    """Joints from below `top` down to `bottom`."""
    line = _line(bottom, parents)
    return tuple(reversed(line[: line.index(top)]))


def _with_trunk(
    joints: dict[str, int], head: int, names: Sequence[str], parents: Sequence[int]
) -> Humanoid:
    pelvis = _meeting(joints["L_Hip"], joints["R_Hip"], parents)
    chest = _meeting(joints["L_Shoulder"], joints["R_Shoulder"], parents)
    meeting = -1 if min(pelvis, chest) < 0 else _meeting(pelvis, chest, parents)
    if meeting < 0 or chest in (pelvis, meeting):
        raise SourceError(
            "the skeleton is not known: hips and shoulders hang on no trunk between them",
            "unknown_skeleton",
        )
    for side in "LR":
        between = _between(chest, joints[f"{side}_Shoulder"], parents)
        if len(between) > 1:
            joints[f"{side}_Collar"] = between[-2]
    neck: tuple[int, ...] = ()
    if head >= 0 and chest in _line(head, parents):
        neck = _between(chest, head, parents)
    elif head < 0:
        neck = _nameless_neck(chest, joints, names, parents)
    tips = tuple(
        joints.get(f"{side}_Foot", _first_child(joints[f"{side}_Ankle"], parents)) for side in "LR"
    )
    return Humanoid(
        joints=joints | {"Pelvis": pelvis, "Spine3": chest},
        parents=tuple(parents),
        spine=_between(meeting, chest, parents),
        neck=neck,
        toe_tips=(tips[0], tips[1]),
    )


def _nameless_neck(
    chest: int, joints: dict[str, int], names: Sequence[str], parents: Sequence[int]
) -> tuple[int, ...]:
    """A rig without a head joint, but with a neck."""
    necks = [j for j, name in enumerate(names) if _plain(name).endswith("neck")]
    return next((_between(chest, j, parents) for j in necks if chest in _line(j, parents)[1:]), ())


def _first_child(joint: int, parents: Sequence[int]) -> int:
    return next((j for j, parent in enumerate(parents) if parent == joint), -1)
