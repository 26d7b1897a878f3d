"""The syntax of BVH: a hierarchy of joints with channels, then one row of numbers a frame.

Knows it as files use it: tabs, CRLF, UTF-8 or Latin-1, names with spaces, no End Site, channels in
any order and number, positions on any joint, a wrong frame count, cut frame times. Does not know
what joints mean, nor axes and units: numbers come as they are in the file.

Shape letters: L frames, J joints, End Sites among them, C channels.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hymotion_ray.errors import SourceError
from hymotion_ray.formats.sources.clip import check_size
from hymotion_ray.formats.sources.frame_rate import rate_of_step

Doubles = NDArray[np.float64]

MAX_JOINTS = 4000
MAX_HEADER_BYTES = 4 << 20
_POSITIONS = ("xposition", "yposition", "zposition")
_ROTATIONS = ("xrotation", "yrotation", "zrotation")
_NO_BONE = 1e-2
_MOTION = re.compile(rb"^[ \t]*MOTION[ \t]*\r?$", re.MULTILINE)
_COUNT = re.compile(r"Frames\s*:\s*(\S+)", re.IGNORECASE)
_STEP = re.compile(r"Frame\s*Time\s*:\s*(\S+)[^\r\n]*", re.IGNORECASE)
_MOTION_HEADER_BYTES = 1024


@dataclass(frozen=True, eq=False)
class BvhText:
    """What a BVH file says, in its own units and axes.

    names (J), root first, the end of a chain as `<parent>_end`; parents (J), -1 for the root;
    offsets (J,3); fps; rotations (L,J,3,3) and positions (L,J,3) against the parent; warnings.
    """

    names: tuple[str, ...]
    parents: tuple[int, ...]
    offsets: Doubles
    fps: float
    rotations: Doubles
    positions: Doubles
    warnings: tuple[str, ...]


@dataclass
class _Joint:
    name: str
    parent: int
    offset: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    channels: list[str] = field(default_factory=list)


def parse_bvh(content: bytes) -> BvhText:
    """The clip in a file's bytes; `SourceError` with a code for what is malformed.

    Rows count, not the header's frame number: a difference is a warning.
    """
    motion = _MOTION.search(content[:MAX_HEADER_BYTES])
    head = content[: motion.start()] if motion else content[:MAX_HEADER_BYTES]
    if not head.split()[:1] == [b"HIERARCHY"] and not _text(head).lstrip(
        "\ufeff \t\r\n"
    ).startswith("HIERARCHY"):
        raise SourceError("not a BVH file: it does not start with HIERARCHY", "bad_syntax")
    if motion is None:
        raise SourceError(
            f"no MOTION line within the first {MAX_HEADER_BYTES} bytes: cut off or no BVH",
            "truncated" if len(content) < MAX_HEADER_BYTES else "bad_syntax",
        )
    joints = _read_hierarchy(_text(head).lstrip("\ufeff"))
    fps, rows, notes = _read_motion(
        content[motion.end() :], sum(len(joint.channels) for joint in joints)
    )
    check_size(len(rows), len(joints))
    rotations, positions = _local(joints, rows)
    return BvhText(
        names=tuple(joint.name for joint in joints),
        parents=tuple(joint.parent for joint in joints),
        offsets=np.array([joint.offset for joint in joints]),
        fps=fps,
        rotations=rotations,
        positions=positions,
        warnings=notes,
    )


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


# --- hierarchy ------------------------------------------------------------------------------------


def _read_hierarchy(text: str) -> list[_Joint]:
    tokens = iter(text.replace("{", " { ").replace("}", " } ").split()[1:])
    joints: list[_Joint] = []
    open_joints: list[int] = []
    for token in tokens:
        word = token.upper()
        if word in ("ROOT", "JOINT", "END"):
            _open_joint(word, tokens, joints, open_joints)
        elif token == "}" and open_joints:
            open_joints.pop()
        elif word == "OFFSET" and open_joints:
            joints[open_joints[-1]].offset = _numbers(tokens, 3)
        elif word == "CHANNELS" and open_joints:
            joints[open_joints[-1]].channels = _channels(tokens)
        else:
            raise SourceError(f"{token[:40]!r} is out of place in the HIERARCHY", "bad_syntax")
    if open_joints or not joints:
        raise SourceError("the HIERARCHY ends before all braces are closed", "truncated")
    return joints


def _open_joint(
    word: str, tokens: Iterator[str], joints: list[_Joint], open_joints: list[int]
) -> None:
    """A ROOT, JOINT or End Site; the end of a chain becomes a joint `<parent>_end`."""
    words: list[str] = []
    while (token := _next(tokens)) != "{":
        words.append(token)
    if word == "ROOT" and joints:
        raise SourceError("a second ROOT; export one skeleton a file", "bad_syntax")
    if word != "ROOT" and not open_joints:
        raise SourceError(f"{word} outside of a ROOT", "bad_syntax")
    if len(joints) >= MAX_JOINTS:
        raise SourceError(f"more than {MAX_JOINTS} joints", "bad_syntax")
    parent = open_joints[-1] if open_joints else -1
    name = f"{joints[parent].name}_end" if word == "END" else " ".join(words)
    joints.append(_Joint(name, parent))
    open_joints.append(len(joints) - 1)


def _next(tokens: Iterator[str]) -> str:
    token = next(tokens, None)
    if token is None:
        raise SourceError("the HIERARCHY is cut off", "truncated")
    return token


def _numbers(tokens: Iterator[str], count: int) -> list[float]:
    words = [_next(tokens) for _ in range(count)]
    try:
        values = [float(word) for word in words]
    except ValueError as cause:
        raise SourceError(f"OFFSET {' '.join(words)[:60]} is not numbers", "bad_syntax") from cause
    if not np.isfinite(values).all():
        raise SourceError(f"OFFSET {' '.join(words)} is not finite", "not_finite")
    return values


def _channels(tokens: Iterator[str]) -> list[str]:
    count = _next(tokens)
    if not count.isdecimal() or int(count) > 6:
        raise SourceError(f"CHANNELS {count[:20]}; allowed: 0 to 6", "bad_syntax")
    channels = [_next(tokens).lower() for _ in range(int(count))]
    odd = [c for c in channels if c not in _POSITIONS + _ROTATIONS]
    if odd or len(set(channels)) < len(channels):
        raise SourceError(
            f"CHANNELS {' '.join(channels)[:80]}; allowed: X, Y, Z position and rotation, each"
            " once",
            "bad_syntax",
        )
    return channels


# --- rows -----------------------------------------------------------------------------------------


def _read_motion(content: bytes, num_channels: int) -> tuple[float, Doubles, tuple[str, ...]]:
    """Frame rate, rows (L,C) and warnings."""
    head = content[:_MOTION_HEADER_BYTES].decode("latin-1")
    count, step = _COUNT.search(head), _STEP.search(head)
    if count is None or step is None:
        raise SourceError("MOTION must begin with `Frames:` and `Frame Time:`", "bad_syntax")
    fps = rate_of_step(step[1], "Frame Time")
    rows = _table(content[step.end() :], num_channels)
    notes = []
    if not count[1].isdecimal() or int(count[1]) != len(rows):
        notes.append(f"the header says {count[1][:20]} frames, the file has {len(rows)}")
    return fps, rows, tuple(notes)


def _table(content: bytes, num_channels: int) -> Doubles:
    if not content.strip():
        raise SourceError("no frames", "no_frames")
    if num_channels == 0:
        raise SourceError("no joint has a channel", "bad_syntax")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of text that is no number
        try:
            values = np.fromstring(content.decode("latin-1"), dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError) as cause:
            raise SourceError("a frame holds what is not a number", "bad_syntax") from cause
    if len(values) % num_channels:
        lines = content.split(b"\n")
        odd = next(
            (
                k
                for k, line in enumerate(ln for ln in lines if ln.strip())
                if len(line.split()) != num_channels
            ),
            0,
        )
        raise SourceError(
            f"frame {odd + 1} has not {num_channels} numbers, as the HIERARCHY has channels;"
            " the file is cut off or damaged",
            "truncated",
        )
    if not np.isfinite(values).all():
        raise SourceError("a frame holds NaN or infinite numbers", "not_finite")
    return values.reshape(-1, num_channels)


# --- kinematics -----------------------------------------------------------------------------------


def _local(joints: list[_Joint], rows: Doubles) -> tuple[Doubles, Doubles]:
    """Rotations (L,J,3,3) and positions (L,J,3) against the parent.

    Position channels replace the OFFSET, on the root as on children (MotionBuilder, Bandai). Only
    where most children say zero, which would leave no bones, do they count from it (MakeHuman).
    """
    rotations = np.broadcast_to(np.eye(3), (len(rows), len(joints), 3, 3)).copy()
    positions = np.empty((len(rows), len(joints), 3))
    column = 0
    for j, joint in enumerate(joints):
        positions[:, j] = joint.offset
        values = rows[:, column : column + len(joint.channels)]
        column += len(joint.channels)
        turns = [k for k, channel in enumerate(joint.channels) if channel in _ROTATIONS]
        if turns:
            axes = "".join(joint.channels[k][0].upper() for k in turns)
            turned = Rotation.from_euler(axes, values[:, turns], degrees=True)
            rotations[:, j] = turned.as_matrix().reshape(-1, 3, 3)
        for k, channel in enumerate(joint.channels):
            if channel in _POSITIONS:
                positions[:, j, _POSITIONS.index(channel)] = values[:, k]
    moved = [
        j
        for j, joint in enumerate(joints)
        if joint.parent >= 0 and any(joint.offset) and _POSITIONS[0] in joint.channels
    ]
    offsets = np.array([joint.offset for joint in joints])
    if moved:
        lengths = np.linalg.norm(positions[:, moved], axis=-1)
        shares = np.median(lengths, axis=0) / np.linalg.norm(offsets[moved], axis=-1)
        if float(np.median(shares)) < _NO_BONE:
            positions[:, moved] += offsets[moved]
    return rotations, positions
