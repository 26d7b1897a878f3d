"""What becomes of a chunk that something befell, until each item is done or failed alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from standin import make_chunks

from hymotion_ray.engine.piece import (
    KILLS_OF_A_CHUNK,
    KILLS_OF_AN_ITEM,
    Piece,
    after_error,
    after_kill,
)


def settle(
    num_items: int, is_bad: Callable[[str], bool], after: Callable[..., list[Piece]]
) -> tuple[dict[str, str], int]:
    """Each item's end (done, or its error code) and the number of tries; bad items fail all."""
    waiting = [Piece(chunk) for chunk in make_chunks(num_items, num_items)]
    ends: dict[str, str] = {}
    num_tries = 0
    while waiting:
        piece = waiting.pop()
        texts = piece.chunk.column("text")
        if piece.is_written_off:
            ends.update(zip(texts, piece.chunk.column("error_code"), strict=True))
            continue
        num_tries += 1
        if any(map(is_bad, texts)):
            waiting += after(piece, "stage", "why", 1)
        else:
            ends.update(dict.fromkeys(texts, "done"))
    return ends, num_tries


@pytest.mark.parametrize("num_items", [1, 2, 5, 8])
@pytest.mark.parametrize(("after", "code"), [(after_error, "stage_failed"), (after_kill, "poison")])
def test_bad_items_fail_alone(num_items: int, after: Callable[..., list[Piece]], code: str) -> None:
    bad = {"<0>", f"<{num_items - 1}>"}
    ends, _ = settle(num_items, bad.__contains__, after)
    assert ends == {f"<{n}>": code if f"<{n}>" in bad else "done" for n in range(num_items)}


def test_a_chunk_that_kills_is_tried_once_more_and_then_taken_apart() -> None:
    (chunk,) = make_chunks(4, 4)
    piece = Piece(chunk)
    for _ in range(KILLS_OF_A_CHUNK - 1):
        assert after_kill(piece, "stage", "died", 1) == [piece]
    singles = after_kill(piece, "stage", "died", 1)
    assert [p.num_items for p in singles] == [1, 1, 1, 1]
    assert all(p.is_suspect and p.num_kills == 0 for p in singles)


def test_the_number_of_tries_is_bounded() -> None:
    _, tries = settle(64, {"<40>"}.__contains__, after_error)
    assert tries <= 2 * 6 + 3
    _, tries = settle(64, {"<40>"}.__contains__, after_kill)
    assert tries == KILLS_OF_A_CHUNK + 63 + KILLS_OF_AN_ITEM


def test_a_piece_that_is_written_off_says_why_and_goes_to_the_end() -> None:
    piece = Piece(*make_chunks(1, 1), num_kills=KILLS_OF_AN_ITEM - 1)
    (written_off,) = after_kill(piece, "sample", "died", 2)
    assert (written_off.step, written_off.payload) == (2, None)
    assert written_off.chunk.column("error")[0].startswith("sample: 3 processes died over this")
