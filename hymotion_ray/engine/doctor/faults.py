"""Faults of one node on purpose, so that tests can see the doctor name node and cause. Ray-free.

Inert unless HYMOTION_DOCTOR_FAULTS holds a JSON object in the environment that a node was started
with: `clock_s` is added to its clock, `shm_bytes` is the size of its /dev/shm, `share` stands for
every shared folder, `blocked` lists names of ports that it cannot reach, `names` breaks look-ups of
its name, `absent` keeps it from the all-reduce.
"""

from __future__ import annotations

import json
import os
from typing import Any

VARIABLE = "HYMOTION_DOCTOR_FAULTS"


def fault(name: str) -> Any:
    """The value of a fault of this node, None without."""
    text = os.environ.get(VARIABLE)
    return json.loads(text).get(name) if text else None
