"""What travels between the stages of an ingest: clips on their way, and rejects. Ray-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from hymotion_ray.formats.shard_table import ShardClip
from hymotion_ray.formats.sources.clip import SourceClip
from hymotion_ray.motion.gates import ClipNumbers
from hymotion_ray.motion.motion import Motion

V = TypeVar("V")


def printable(value: V) -> V:
    """Text without the lone surrogates of names outside of UTF-8, which no table could carry; any
    other value as it is.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()  # type: ignore[return-value]
    return value


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadClip:
    """A clip as its file holds it."""

    file: str
    """Key of the file in the dataset."""
    name: str
    """Unique in the dataset; starts with the file's key."""
    clip: SourceClip


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """A piece of a clip in the form that training takes, not yet judged."""

    file: str
    row: ShardClip
    """What a shard will hold, without quality numbers."""
    motion: Motion
    """The same motion with joints, at 30 frames a second."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FitPiece:
    """A piece that passed the gates."""

    file: str
    row: ShardClip
    motion: Motion
    numbers: ClipNumbers


@dataclass(frozen=True, kw_only=True, eq=False)
class Rejected:
    """A file, clip or piece that is not in the dataset, and why."""

    file: str
    name: str
    """Of the file, clip or piece; starts with the file's key."""
    code: str
    """The gravest reason, a stable word."""
    message: str
    all_codes: tuple[str, ...] = ()
    """Every gate that was not passed."""
    value: float | None = None
    """The number that was out of bounds."""
    limit: float | None = None
    """The bound."""
    num_frames: int | None = None
    """Frames at 30 a second, where known."""
    is_motion: bool = True
    """False for what never claimed to be one (a caption file, a text page): skipped, no reject."""
    motion: Motion | None = None
    """For a picture in the report."""
