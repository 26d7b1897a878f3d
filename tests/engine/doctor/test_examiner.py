"""Examiners in processes of their own, without Ray: groups that meet or do not, shared folders."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket

import pytest

from hymotion_ray.engine.doctor.examiner import Examiner
from hymotion_ray.engine.doctor.faults import VARIABLE
from hymotion_ray.engine.doctor.pairs import spoilers

NUM_RANKS = 3


@pytest.fixture(scope="module")
def processes():
    """A server with torch loaded, from which nodes are forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "hymotion_ray.engine.doctor.examiner"])
    return context


def _node(rank, port, faults, timeout_s, answers):
    os.environ[VARIABLE] = json.dumps(faults)
    examiner = Examiner("127.0.0.1")
    master = ("127.0.0.1", port)
    answers.put((rank, examiner.all_reduce("gloo", master, rank, NUM_RANKS, timeout_s)))
    answers.close()
    answers.join_thread()
    os._exit(0)


def _meet(processes, faults, timeout_s):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    answers = processes.Queue()
    nodes = [
        processes.Process(target=_node, args=(k, port, faults.get(k, {}), timeout_s, answers))
        for k in range(NUM_RANKS)
    ]
    for node in nodes:
        node.start()
    found = dict(answers.get(timeout=120) for _ in nodes)
    for node in nodes:
        node.join()
    return found


def test_a_group_of_all_sums_right(processes):
    assert _meet(processes, {}, 60.0) == dict.fromkeys(range(NUM_RANKS), ([], None))


def test_ranks_that_do_not_come_are_told_by_number(processes):
    found = _meet(processes, {1: {"absent": True}}, 4.0)
    assert found[0] == found[2] == ([1], None)


def test_the_rank_that_all_meet_at_is_missed_by_the_others(processes):
    found = _meet(processes, {0: {"absent": True}}, 4.0)
    assert found[1] == found[2] == ([0], None)


def test_a_rank_is_named_by_those_that_were_there():
    late = "did not come to the group within 4 s"
    lost = ([], "no answer (GetTimeoutError)")
    assert spoilers([([], None)] * 3, 4.0) == {}
    assert spoilers([lost, ([0], None), ([0], None)], 4.0) == {0: late}
    # Rank 1 did not find the store, at which the two others were: the fault is its own.
    assert spoilers([([1], None), ([0], None), ([1], None)], 4.0) == {1: late}
    assert spoilers([([], None), lost, ([], "no sum")], 4.0) == {1: lost[1], 2: "no sum"}


def test_a_share_is_read_after_it_was_written_over(tmp_path):
    writer, reader = Examiner("127.0.0.1"), Examiner("127.0.0.1")
    for text in ("first", "then"):
        assert writer.write(str(tmp_path), ".check", text) is None
        assert reader.read(str(tmp_path), [".check"], text) == [None]
    writer.remove(str(tmp_path), ".check")
    assert list(tmp_path.iterdir()) == []


def test_a_stale_share_says_whether_a_file_is_missing_or_old(tmp_path, monkeypatch):
    monkeypatch.setattr("hymotion_ray.engine.doctor.examiner._SHARE_GRACE_S", 0.0)
    stale = tmp_path / "stale"
    stale.mkdir()
    (stale / ".old").write_text("yesterday")
    writer = Examiner("127.0.0.1")
    assert writer.write(str(tmp_path / "share"), ".old", "today") is None
    monkeypatch.setenv(VARIABLE, json.dumps({"share": str(stale)}))
    found = Examiner("127.0.0.1").read(str(tmp_path / "share"), [".old", ".new"], "today")
    assert found == ["holds what was there before", "is not there"]


def test_a_place_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "file").touch()
    assert "is a file" in (Examiner("127.0.0.1").write(str(tmp_path / "file"), "x", "y") or "")
