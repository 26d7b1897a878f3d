"""Pieces dealt to Ray tasks, or measured here; a process that dies costs its piece a closer look.

Knows Ray. A few pieces are in flight at a time, so that memory does not grow with the folder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import ray
import ray.exceptions

from hymotion_ray.engine.device import set_threads
from hymotion_ray.engine.evaluate.measure import Measured, measure_piece
from hymotion_ray.engine.evaluate.source import Piece, Reject
from hymotion_ray.errors import HyMotionError

_IN_FLIGHT_A_WORKER = 2
_TRIES = 2


def measure_here(
    pieces: Iterator[Piece], embedder: str | None, truth: str | None
) -> Iterator[tuple[Piece, Measured]]:
    """Measure pieces one after another in this process."""
    for piece in pieces:
        yield piece, measure_piece(piece, embedder, truth)


def measure_over_ray(
    pieces: Iterator[Piece], embedder: str | None, truth: str | None, num_workers: int
) -> Iterator[tuple[Piece, Measured]]:
    """Measure pieces in tasks of the connected cluster, in any order.

    A piece whose process dies twice is cut into its files; a file that still kills its
    process is rejected as `reader_died`. Raises what a task raised for the whole job, such as
    `ConfigError` of an embedder.
    """
    task = ray.remote(_measure).options(num_cpus=1, max_retries=_TRIES - 1)
    queue: deque[Piece] = deque()
    running: dict[ray.ObjectRef, Piece] = {}
    exhausted = False
    while running or queue or not exhausted:
        while len(running) < num_workers * _IN_FLIGHT_A_WORKER and not (exhausted and not queue):
            piece = queue.popleft() if queue else next(pieces, None)
            if piece is None:
                exhausted = True
                break
            running[task.remote(piece, embedder, truth)] = piece
        if not running:
            continue
        (done,), _ = ray.wait(list(running), num_returns=1)
        piece = running.pop(done)
        try:
            measured: Measured = ray.get(done)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HyMotionError):
                raise error.cause from error
            raise
        except ray.exceptions.RayError as error:
            if len(piece.names) > 1:
                queue.extend(piece.split())
                continue
            measured = Measured(
                rejects=[
                    Reject(
                        name=piece.names[0],
                        code="reader_died",
                        message=f"its process was lost {_TRIES} times: {error}".splitlines()[0],
                    )
                ]
            )
        yield piece, measured


def _measure(piece: Piece, embedder: str | None, truth: str | None) -> Measured:
    set_threads(1)
    return measure_piece(piece, embedder, truth)
