"""Items that may bring processes down, remembered beyond the driver's own death. Ray-free.

An item counts as suspect once it was twice at work when a process or the driver died. Suspects are
rendered last and alone: what they do then hurts nothing else.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from hymotion_ray.engine.lease import WORK_FOLDER
from hymotion_ray.formats.atomic import Store

DEATHS_OF_A_SUSPECT = 2
_FILE = f"{WORK_FOLDER}/suspects.json"


class Suspects:
    """Deaths by item, kept in the output folder while its job is unfinished."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._deaths: Counter[str] = Counter()
        if store.exists(_FILE):
            self._deaths.update(json.loads(store.read_bytes(_FILE)))

    def add(self, identities: Iterable[str]) -> None:
        """These items were at work at a death."""
        before = len(self._deaths), self._deaths.total()
        self._deaths.update(identities)
        if before != (len(self._deaths), self._deaths.total()):
            self._store.write_bytes(_FILE, json.dumps(self._deaths).encode())

    @property
    def identities(self) -> set[bytes]:
        """Identities of the suspects."""
        return {
            bytes.fromhex(name)
            for name, deaths in self._deaths.items()
            if deaths >= DEATHS_OF_A_SUSPECT
        }
