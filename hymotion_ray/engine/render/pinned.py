"""`--exact`: the devices and libraries that a folder's clips are made by, held to one. Ray-free.

One grid cell is the other half of it: `plan.py` rejects what does not fit, and `sample.py` fails
what could only be sampled in another way.
"""

from __future__ import annotations

from collections.abc import Callable

from hymotion_ray.errors import ClusterError


class PinnedClass:
    """By step, where and with what its first process ran; another kind of process is refused."""

    def __init__(self, known: dict[str, str], save: Callable[[dict[str, str]], None]) -> None:
        """`known`: what earlier jobs of the folder ran on; `save` keeps what this one adds."""
        self._known = dict(known)
        self._save = save

    def check(self, step: str, kind: str, build: str) -> None:
        """A process of `step` has come up; `ClusterError` when its bits would be others."""
        found = f"{kind}, {build}"
        held = self._known.get(step)
        if held is None:
            self._known[step] = found
            self._save(dict(self._known))
        elif held != found:
            raise ClusterError(
                f"--exact pins one class, and a process of the {step} step is of another: the"
                f" folder's clips are made on {held}, this one is {found}. Use nodes of one kind"
                " and one installation, or another --out"
            )
