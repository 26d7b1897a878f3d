"""Names the rank that failed first, on every rank, instead of a bare time-out. Ray-free.

A rank that fails leaves word in the process group's store and ends. Its closed connections wake the
ranks that wait for it, and they look up who it was. A rank that hangs leaves no word: after the
group's time-out the ranks that noticed call the roll, and who does not answer is named. Knows the
default group and its store; knows nothing of training. Before the first step see `health.py`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator

import torch.distributed as dist

from hymotion_ray.errors import ClusterError, HyMotionError

_FIRST, _NOTICED = "hymotion-failed/first", "hymotion-failed/noticed"
_POLL_S = 0.05
_LONGEST = 500
"""Characters of an error that are told to the other ranks."""
_COLLECTIVE_WORDS = ("gloo", "NCCL", "Connection closed", "Connection reset", "Timed out", "c10d")


@contextlib.contextmanager
def naming_the_rank(grace_s: float = 3.0) -> Iterator[None]:
    """Run a rank's training; where any rank fails raise `ClusterError` that names the first one.

    The failing rank's own error is the cause of its `ClusterError`; errors meant for users pass as
    they are, since no restart mends them. grace_s: how long a rank waits
    for word of another's failure, and how long the store's keeper stays for the others. Nothing is
    changed without a group or with one rank.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        yield
        return
    watch = _Watch(grace_s)
    try:
        yield
    except HyMotionError as error:
        watch.words(error)
        raise
    except Exception as error:
        raise ClusterError(watch.words(error)) from error


class _Watch:
    def __init__(self, grace_s: float) -> None:
        # The store outlives the group here; torch has no public name for it.
        self.store = dist.distributed_c10d._get_default_store()
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.grace_s = grace_s

    def words(self, error: Exception) -> str:
        """What to say of `error` at this rank, after telling the others."""
        text = f"{type(error).__name__}: {error}"[:_LONGEST]
        try:
            if _is_collective(error):
                self.store.set(f"{_NOTICED}/{self.rank}", "1")
                first = self._wait_for_word()
            else:
                mine = f"{self._name()} failed first, with {text}"
                first = self.store.compare_set(_FIRST, "", mine).decode()
            return first or self._silent(text)
        except RuntimeError:  # the store went with rank 0
            return (
                f"rank 0 is gone, and with it the store that ranks meet in; rank {self.rank} of "
                f"{self.num_ranks} noticed by {text}; see rank 0's log, then start again to resume"
            )
        finally:
            if self.rank == 0:
                time.sleep(self.grace_s)

    def _name(self) -> str:
        return (
            f"rank {self.rank} of {self.num_ranks} (host {socket.gethostname()}, process "
            f"{os.getpid()})"
        )

    def _wait_for_word(self) -> str | None:
        end = time.monotonic() + self.grace_s
        while time.monotonic() < end:
            if self.store.check([_FIRST]):
                return self.store.get(_FIRST).decode()
            time.sleep(_POLL_S)
        return None

    def _silent(self, text: str) -> str:
        ranks = range(self.num_ranks)
        silent = [r for r in ranks if not self.store.check([f"{_NOTICED}/{r}"])]
        if not silent:
            return f"all {self.num_ranks} ranks lost a collective call at once: {text}"
        return (
            f"rank {', '.join(map(str, silent))} of {self.num_ranks} died or hangs without a word; "
            f"the others noticed by {text}"
        )


def _is_collective(error: Exception) -> bool:
    """Whether an error says that a message to or from another rank failed."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(w in str(error) for w in _COLLECTIVE_WORDS)
