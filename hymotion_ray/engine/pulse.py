"""Signs of life of this process: a count that grows while its work goes on. Ray-free.

A watcher that sees the count stand still for long knows that the process hangs, whatever it hangs
in. Long calls beat at each of their steps; so a slow machine is not taken for a dead one.
"""

from __future__ import annotations

_count = 0


def beat(*_: object) -> None:
    """One more sign of life. Arguments are ignored, so that it serves as a callback."""
    global _count
    _count += 1


def beats() -> int:
    """Signs of life so far."""
    return _count
