"""One driver a folder, whatever the other one does or has done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hymotion_ray.engine.lease import Lease
from hymotion_ray.engine.suspects import Suspects
from hymotion_ray.errors import OutputError
from hymotion_ray.formats.atomic import Store, open_store

FILE = ".work/lease.json"
HOLD = """
import sys, time
from hymotion_ray.engine.lease import Lease
from hymotion_ray.formats.atomic import open_store
with Lease(open_store(sys.argv[1]), print, 0.1) as lease:
    lease.tell(lambda: ["0a", "0b"])
    time.sleep(0.5)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "out")


def lease(store: Store, lines: list[str] | None = None) -> Lease:
    return Lease(store, ([] if lines is None else lines).append, beat_s=0.1)


def elsewhere(store: Store, **changes: object) -> None:
    """Make the lease look like one of another machine."""
    held = json.loads(store.read_bytes(FILE))
    store.write_bytes(FILE, json.dumps(held | {"machine": "other", **changes}).encode())


def test_a_lease_leaves_nothing_behind(store: Store) -> None:
    with lease(store):
        assert store.exists(FILE)
    assert not os.path.exists(store.path())
    store.write_bytes("a", b"1")
    with lease(store):
        pass
    assert store.list_files() == ["a"]


def test_a_lease_that_is_away_for_a_moment_is_no_lost_folder(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [False, False]
    there = Store.exists

    def at_times(self: Store, name: str) -> bool:
        return answers.pop() if answers else there(self, name)

    with lease(store) as held, monkeypatch.context() as patch:
        patch.setattr(Store, "exists", at_times)
        held.check.require()
        assert answers == []
        patch.setattr(Store, "exists", lambda self, name: False)
        with pytest.raises(OutputError, match="not what the driver sees"):
            held.check.require()


def test_a_second_driver_is_refused_while_the_first_lives(store: Store) -> None:
    with lease(store), pytest.raises(OutputError, match=rf"in use by process {os.getpid()}"):
        lease(store).__enter__()


def test_a_second_driver_of_another_machine_is_refused_too(store: Store) -> None:
    lines: list[str] = []
    with lease(store) as first:
        first._mine["machine"] = "other"
        time.sleep(0.3)
        with pytest.raises(OutputError, match="in use by"):
            lease(store, lines).__enter__()
    assert lines[0].startswith("waiting 0.4 s to see")


def test_a_lease_that_stands_still_is_taken_over(store: Store) -> None:
    with lease(store):
        left = store.read_bytes(FILE)
    store.write_bytes(FILE, left)
    elsewhere(store, running=["0a"])
    with lease(store) as second:
        assert second.is_takeover
        assert second.left_running == ["0a"]
        second.check.require()


def test_a_driver_killed_on_this_machine_is_followed_at_once(store: Store) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, store.root], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(OutputError, match=f"in use by process {process.pid}"):
        lease(store).__enter__()
    process.send_signal(signal.SIGKILL)
    process.wait()
    lines: list[str] = []
    with lease(store, lines) as second:
        assert second.is_takeover
        assert second.left_running == ["0a", "0b"]
    assert lines == []


def test_a_driver_that_was_taken_over_knows_and_its_writers_stop(store: Store) -> None:
    with lease(store) as first:
        elsewhere(store, token="another")
        with pytest.raises(OutputError, match="another driver has taken it over"):
            first.check.require()
        time.sleep(0.4)
        assert first.lost
    assert json.loads(store.read_bytes(FILE))["token"] == "another"


def test_a_damaged_lease_is_no_lease(store: Store) -> None:
    store.write_bytes(FILE, b"{")
    with lease(store) as own:
        assert not own.is_takeover


def test_an_item_is_suspect_after_two_deaths_and_stays_so_over_runs(store: Store) -> None:
    first = Suspects(store)
    first.add(["0a", "0b"])
    assert first.identities == set()
    second = Suspects(store)
    second.add(["0b", "0c"])
    assert Suspects(store).identities == {b"\x0b"}
