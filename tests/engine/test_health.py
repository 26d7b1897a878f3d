"""The check at the start names the rank that is missing, silent or wrong, on every rank left."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist

from hymotion_ray.engine import faults, health
from hymotion_ray.engine.train.watch import gather_ranks
from hymotion_ray.errors import ClusterError

LONG_S, SHORT_S = 60.0, 4.0
"""Timeouts of checks that must pass, and of those that must not."""


@pytest.fixture(scope="module")
def processes():
    """A server with torch loaded, from which ranks are forked: a rank costs no import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "hymotion_ray.engine.health", __name__])
    return context


def _rank(folder, rank, world_size, timeout_s, words):
    """One rank of a gloo group; what came of its check goes to `words`."""
    faults.use(str(folder))
    health._GRACE_S = 0.5
    store = dist.FileStore(str(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if (folder / f"faulty-{rank}").exists():
        sound = health.contribution
        health.contribution = lambda *given: (
            sound(*given) + torch.eye(1024)[7] * (torch.arange(world_size) == rank).unsqueeze(1)
        )
    try:
        for _ in range(2):
            health.check_collectives(timeout_s=timeout_s)
        words.put((rank, "sound"))
        assert [row["rank"] for row in gather_ranks({"rank": rank})] == list(range(world_size))
    except ClusterError as error:
        words.put((rank, str(error)))
    words.close()
    words.join_thread()
    os._exit(0)


def _verdicts(processes, folder, world_size, num_expected):
    """What each of the first `num_expected` ranks to end says of the group."""
    words = processes.Queue()
    timeout_s = LONG_S if num_expected == world_size else SHORT_S
    ranks = [
        processes.Process(target=_rank, args=(folder, rank, world_size, timeout_s, words))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    found = dict(words.get(timeout=60) for _ in range(num_expected))
    for rank, process in enumerate(ranks):
        if rank not in found:
            process.kill()
        process.join()
    return found


def test_a_sound_group_passes_twice(processes, tmp_path):
    assert _verdicts(processes, tmp_path, 3, 3) == dict.fromkeys(range(3), "sound")


def test_a_rank_that_never_answers_is_named(processes, tmp_path):
    (tmp_path / "plan").write_text("health-roll-call:*:hang:rank 1")
    found = _verdicts(processes, tmp_path, 3, 2)
    for rank in (0, 2):
        assert found[rank].startswith("rank 1 of 3 did not answer within 4 s; there are rank 0 on ")


def test_a_rank_that_stops_before_the_all_reduce_is_named(processes, tmp_path):
    (tmp_path / "plan").write_text("health-all-reduce:*:hang:rank 2")
    found = _verdicts(processes, tmp_path, 3, 2)
    for rank in (0, 1):
        assert found[rank].startswith("rank 2 on ")
        assert "did not come to the first all-reduce" in found[rank]


def test_a_rank_that_dies_before_the_all_reduce_is_named(processes, tmp_path):
    (tmp_path / "plan").write_text("health-all-reduce:*:kill:rank 0")
    found = _verdicts(processes, tmp_path, 2, 1)
    assert found[1].startswith("rank 0 on ")


def test_a_rank_with_wrong_numbers_is_named(processes, tmp_path):
    (tmp_path / "faulty-1").touch()
    found = _verdicts(processes, tmp_path, 2, 2)
    for rank in (0, 1):
        assert found[rank].startswith(
            "an all-reduce of known numbers gave wrong ones for rank 1 on"
        )


def test_rows_of_the_sum_are_exact_for_many_ranks():
    world_size = 40
    device = torch.device("cpu")
    total = sum(health.contribution(rank, world_size, device) for rank in range(world_size))
    assert health.wrong_rows(total) == []
    total[39, 3] += 1
    assert health.wrong_rows(total) == [39]


def test_a_single_process_has_nothing_to_check():
    health.check_collectives(timeout_s=0.1)
