"""Which source files stop the process that reads them. Ray-free; lives in one actor of a job.

Ray starts a task again whose process died, as often as it takes. A file that kills every process
would go round for ever: so a task that starts again names each file here before it reads it, and a
file that was named last before so many deaths is read no more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

_MAX_BLAMELESS = 8
"""Deaths of one task that no file was named before: the machine's fault, or our own."""


@dataclass
class _Chunk:
    node: str = ""
    starts: int = 0
    open_file: int | None = None
    blameless: int = 0
    strikes: dict[int, int] = field(default_factory=dict)


class Attempts:
    """Counts starts of chunks, and deaths by file."""

    def __init__(self, tries: int) -> None:
        """tries: deaths after which a file is given up."""
        self._tries = tries
        self._chunks: dict[str, _Chunk] = {}

    def begin(
        self, chunk: str, node: str = "", alive: Collection[str] = ("",)
    ) -> tuple[bool, list[int]]:
        """Whether to name files before reading them, and which to leave out.

        node: where the chunk starts; alive: the nodes that there are. A file is not blamed for a
        death of the whole node it was read on.
        Raises RuntimeError when the chunk's process keeps dying outside of any file.
        """
        state = self._chunks.setdefault(chunk, _Chunk(node))
        state.starts += 1
        lost_node, state.node = state.node not in alive, node
        if lost_node:
            state.open_file = None
        elif state.open_file is not None:
            state.strikes[state.open_file] = state.strikes.get(state.open_file, 0) + 1
            state.open_file = None
        elif state.starts > 2:
            # The first start names nothing, so its death blames nobody.
            state.blameless += 1
        if state.blameless > _MAX_BLAMELESS:
            raise RuntimeError(
                f"the process of chunk {chunk} stopped {state.blameless} times outside of any"
                " source file: look for a lack of memory or disk on the nodes"
            )
        given_up = [i for i, strikes in state.strikes.items() if strikes >= self._tries]
        return state.starts > 1, sorted(given_up)

    def reading(self, chunk: str, index: int | None) -> None:
        """File `index` of the chunk is about to be read; None: none is."""
        self._chunks[chunk].open_file = index

    def end(self, chunk: str) -> None:
        """The chunk is done; forget it."""
        self._chunks.pop(chunk, None)
