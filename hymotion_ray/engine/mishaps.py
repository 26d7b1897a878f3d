"""What happened to processes of a run, and whose fault it was. Ray-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field

from hymotion_ray.engine.piece import Piece

_NODE_DEATH_S = 60.0
"""How long after a process's death its node's death may become known."""


@dataclass
class Mishaps:
    """What happened to processes so far."""

    killed: int = 0
    """Processes that died."""
    hung: int = 0
    """Processes that showed no life and were ended."""
    lost_with_node: int = 0
    """Processes whose node went away, as spot instances do; no item is to blame."""
    _deaths: deque[tuple[float, str, Piece]] = field(default_factory=deque)

    def counts(self) -> dict[str, int]:
        """The numbers by name."""
        return {"killed": self.killed, "hung": self.hung, "lost_with_node": self.lost_with_node}

    def died(self, *, with_node: bool) -> None:
        """Count a process that died, alone or with its node."""
        if with_node:
            self.lost_with_node += 1
        else:
            self.killed += 1

    def blame(self, now: float, node_id: str, piece: Piece) -> None:
        """Note that a process of `node_id` died over `piece`, whose fault it seems to be."""
        self._deaths.append((now, node_id, piece))

    def forgive(self, now: float, alive: Set[str]) -> None:
        """Take back what counts against pieces whose process went with its node."""
        for when, node_id, piece in list(self._deaths):
            if node_id not in alive:
                piece.num_kills = max(0, piece.num_kills - 1)
                self.killed -= 1
                self.lost_with_node += 1
            elif now - when < _NODE_DEATH_S:
                continue
            self._deaths.remove((when, node_id, piece))
