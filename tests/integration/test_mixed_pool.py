"""Nodes of unlike speed on one queue, joining and dying while it is worked off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "campaign_mixed.py"


@pytest.mark.slow
@pytest.mark.ray
def test_unlike_nodes_share_one_queue_and_a_lost_one_loses_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--chunks", "60", "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=dict(os.environ),
    )
    found = json.loads(done.stdout.splitlines()[-1])
    paces, late, killed = found["paces"], found["late"], found["killed"]
    assert paces["once"]
    assert paces["shares"]["fast"] > paces["shares"]["slow"] > 0
    assert paces["finish_on"] == paces["encode_on"] == ["cpu"]
    assert late["chunks_of_the_late_node"] > 0
    assert killed["once"]
    assert killed["processes"]["lost_with_node"] >= 1
    assert killed["processes"]["killed"] == 0
    assert killed["finish_on"] == ["cpu"]
