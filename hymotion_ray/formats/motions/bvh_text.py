"""The syntax of BVH: a hierarchy of joints with channels, then one row of numbers a frame.

Knows any joint names, channel orders, missing End Sites, tabs and CRLF. Does not know units, up
axis or what the joints mean: numbers come as they are in the file.

Shape letters: L frames, J joints (End Sites are not joints).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hymotion_ray.errors import InputError

Doubles = NDArray[np.float64]
_POSITIONS = ("Xposition", "Yposition", "Zposition")
_ROTATIONS = ("Xrotation", "Yrotation", "Zrotation")
# Frame times are truncated in text; a rate this near to a common one means that one.
_COMMON_FPS = (24, 25, 30, 50, 60, 72, 90, 100, 120)
_FPS_SLACK = 1e-3


@dataclass(frozen=True, eq=False)
class BvhClip:
    """What a BVH file says, in its own units and axes.

    names (J), root first; parents (J), -1 for the root; offsets (J,3); fps; rotations (L,J,3,3)
    local; positions (L,J,3): the position channels of a joint that has them, else its offset.
    """

    names: tuple[str, ...]
    parents: tuple[int, ...]
    offsets: Doubles
    fps: float
    rotations: Doubles
    positions: Doubles


@dataclass
class _Header:
    names: list[str] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    offsets: list[list[float]] = field(default_factory=list)
    channels: list[list[str]] = field(default_factory=list)


def parse_bvh(content: bytes, name: str) -> BvhClip:
    """The clip in a file's bytes; `InputError`, which starts with `name`, says what is malformed.

    A wrong `Frames:` count is corrected by the rows that are there.
    """
    text = content.decode("utf-8", errors="replace").lstrip("\ufeff")
    head, separator, tail = text.partition("MOTION")
    if not separator or not head.split() or head.split()[0] != "HIERARCHY":
        raise InputError(f"{name}: not a BVH file: HIERARCHY and MOTION are not both there")
    header = _read_hierarchy(iter(head.split()[1:]), name)
    frame_time, rows = _read_rows(tail, sum(map(len, header.channels)), name)
    return _clip(header, frame_time, rows)


def _read_hierarchy(tokens: Iterator[str], name: str) -> _Header:
    header = _Header()
    open_joints: list[int] = []
    for token in tokens:
        if token in ("ROOT", "JOINT"):
            if (token == "ROOT") != (not header.names):
                raise InputError(f"{name}: expected one ROOT first and JOINTs below it")
            header.names.append(_next(tokens, name))
            header.parents.append(open_joints[-1] if open_joints else -1)
            header.offsets.append([0.0, 0.0, 0.0])
            header.channels.append([])
            _expect(tokens, "{", name)
            open_joints.append(len(header.names) - 1)
        elif token == "End":
            for word in ("Site", "{", "OFFSET"):
                _expect(tokens, word, name)
            _read_vector(tokens, name)
            _expect(tokens, "}", name)
        elif token == "}" and open_joints:
            open_joints.pop()
        elif token == "OFFSET" and open_joints:
            header.offsets[open_joints[-1]] = _read_vector(tokens, name)
        elif token == "CHANNELS" and open_joints:
            header.channels[open_joints[-1]] = _read_channels(tokens, name)
        else:
            raise InputError(f"{name}: {token!r} is out of place in the HIERARCHY")
    if open_joints or not header.names:
        raise InputError(f"{name}: the HIERARCHY ends before all braces are closed")
    return header


def _next(tokens: Iterator[str], name: str) -> str:
    token = next(tokens, None)
    if token is None:
        raise InputError(f"{name}: the HIERARCHY ends too early")
    return token


def _expect(tokens: Iterator[str], wanted: str, name: str) -> None:
    token = _next(tokens, name)
    if token != wanted:
        raise InputError(f"{name}: expected {wanted!r} in the HIERARCHY, got {token!r}")


def _read_vector(tokens: Iterator[str], name: str) -> list[float]:
    words = [_next(tokens, name) for _ in range(3)]
    try:
        return [float(word) for word in words]
    except ValueError as cause:
        raise InputError(f"{name}: OFFSET {' '.join(words)} is not three numbers") from cause


def _read_channels(tokens: Iterator[str], name: str) -> list[str]:
    count = _next(tokens, name)
    if not count.isdigit() or int(count) > 6:
        raise InputError(f"{name}: CHANNELS {count}; allowed: 0 to 6")
    channels = [_next(tokens, name) for _ in range(int(count))]
    unknown = [c for c in channels if c not in _POSITIONS + _ROTATIONS]
    if unknown or len(set(channels)) < len(channels):
        raise InputError(
            f"{name}: CHANNELS {' '.join(channels)}; allowed, each once:"
            f" {', '.join(_POSITIONS + _ROTATIONS)}"
        )
    return channels


def _read_rows(text: str, num_channels: int, name: str) -> tuple[float, Doubles]:
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        frame_time = float(lines[1].split(":")[1])
        named = lines[0].split(":")[0].strip() == "Frames"
    except (IndexError, ValueError) as cause:
        raise InputError(f"{name}: MOTION must begin with `Frames:` and `Frame Time:`") from cause
    if not named or not 1e-4 <= frame_time <= 10:
        raise InputError(f"{name}: frame time {frame_time} s; allowed: 0.0001 to 10")
    try:
        rows = [[float(word) for word in line.split()] for line in lines[2:]]
    except ValueError as cause:
        raise InputError(f"{name}: a frame holds what is not a number: {cause}") from cause
    odd = next((k for k, row in enumerate(rows) if len(row) != num_channels), None)
    if odd is not None or not rows:
        what = "no frames" if odd is None else f"frame {odd + 1} has {len(rows[odd])} numbers"
        raise InputError(f"{name}: {what}; the HIERARCHY has {num_channels} channels")
    table = np.array(rows)
    if not np.isfinite(table).all():
        raise InputError(f"{name}: a frame holds NaN or infinite numbers")
    return frame_time, table


def _clip(header: _Header, frame_time: float, rows: Doubles) -> BvhClip:
    offsets = np.array(header.offsets)
    positions = np.repeat(offsets[None], len(rows), axis=0)
    rotations = np.broadcast_to(np.eye(3), (len(rows), len(offsets), 3, 3)).copy()
    column = 0
    for joint, channels in enumerate(header.channels):
        values = rows[:, column : column + len(channels)]
        column += len(channels)
        axes = [c[0] for c in channels if c in _ROTATIONS]
        if axes:
            angles = values[:, [k for k, c in enumerate(channels) if c in _ROTATIONS]]
            turned = Rotation.from_euler("".join(axes), angles, degrees=True)
            rotations[:, joint] = turned.as_matrix().reshape(-1, 3, 3)
        for k, channel in enumerate(channels):
            if channel in _POSITIONS:
                positions[:, joint, _POSITIONS.index(channel)] = values[:, k]
    return BvhClip(
        names=tuple(header.names),
        parents=tuple(header.parents),
        offsets=offsets,
        fps=_rate(frame_time),
        rotations=rotations,
        positions=positions,
    )


def _rate(frame_time: float) -> float:
    fps = 1 / frame_time
    near = [rate for rate in _COMMON_FPS if abs(fps / rate - 1) < _FPS_SLACK]
    return float(near[0]) if near else fps
