"""A chunk on its way through the pipeline, and what becomes of it when something befalls it.

Ray-free. Items fail only when they stand alone: until then their chunk is tried again or taken
apart, so that one bad item never takes its mates with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hymotion_ray.engine.stage import Chunk

KILLS_OF_A_CHUNK = 2
"""Deaths of processes over a chunk after which it is taken apart."""
KILLS_OF_AN_ITEM = 3
"""Deaths over a single item after which it is failed as `poison`."""
ERRORS_OF_AN_ITEM = 2
"""Exceptions that a single item must meet before it is failed."""
LOSSES_OF_A_CHUNK = 20
"""Times that a chunk's results may be lost with their nodes; more is no accident."""


@dataclass(eq=False)
class Piece:
    """A chunk, where it is and what has befallen it."""

    chunk: Chunk
    """As it entered the pipeline; or, to be written off, with its items failed."""
    step: int = 0
    """The step it waits for or is in."""
    payload: Any = None
    """What the step takes: the step before's result; None: the chunk itself."""
    num_kills: int = 0
    num_errors: int = 0
    num_losses: int = 0
    is_suspect: bool = False
    """Whether it was taken apart because of deaths: then it goes last."""
    is_written_off: bool = field(default=False)
    """Whether its items are failed, and only their rows are still to be written."""

    @property
    def num_items(self) -> int:
        """Items of the chunk."""
        return self.chunk.items.num_rows

    def begin_again(self) -> Piece:
        """The piece, back at the first step."""
        self.step, self.payload = 0, None
        return self


def after_error(piece: Piece, stage: str, text: str, last_step: int) -> list[Piece]:
    """What to do instead of a piece that `stage` raised over: halves, again, or written off."""
    piece.num_errors += 1
    if piece.num_items > 1:
        halves = piece.chunk.split(2)
        return [
            Piece(half, num_errors=piece.num_errors, is_suspect=piece.is_suspect) for half in halves
        ]
    if piece.num_errors < ERRORS_OF_AN_ITEM:
        return [piece.begin_again()]
    return [write_off(piece, f"{stage}_failed", text, last_step)]


def after_kill(piece: Piece, stage: str, how: str, last_step: int) -> list[Piece]:
    """What to do instead of a piece that a process died over: again, single items, written off."""
    piece.num_kills += 1
    if piece.num_items > 1:
        if piece.num_kills < KILLS_OF_A_CHUNK:
            return [piece]
        return [Piece(one, is_suspect=True) for one in piece.chunk.split(piece.num_items)]
    if piece.num_kills < KILLS_OF_AN_ITEM:
        return [piece]
    text = (
        f"{stage}: {piece.num_kills} processes {how} over this item, the last ones with nothing"
        " else at hand"
    )
    return [write_off(piece, "poison", text, last_step)]


def write_off(piece: Piece, code: str, text: str, last_step: int) -> Piece:
    """The piece with its items failed, on its way to the last step, which writes that down."""
    failed = piece.chunk.with_all_failed(code, text)
    return Piece(failed, step=last_step, is_written_off=True)
