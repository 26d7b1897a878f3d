"""A node dies under a training run on two: a spare one replaces it, or it goes on without."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_shards import small_dataset
from train_driver import TrainCommand
from train_runs import (
    assert_same_bits,
    assert_same_weights,
    debug_config,
    prepare,
    train_here,
    train_ranks,
)

from hymotion_ray.engine.train.events import read_events

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1800)]
SMALL = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_log_monitor": False}
# A node that is killed refuses connections, which is noticed at once; a slow one has its time.
NOTICE_SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000}


@pytest.fixture
def cluster(no_session_ray: None) -> Iterator[Any]:
    """A node with room for one worker; tests add more."""
    from ray.cluster_utils import Cluster

    head = {"include_dashboard": False, "no_monitor": True, "_system_config": NOTICE_SOON, **SMALL}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


def train_through_a_lost_node(cluster: Any, num_more: int, folder: Path, workers: str) -> Path:
    """The folder of 6 steps on this and `num_more` nodes; one with a worker died at step 5.

    One rank stops for good at that step, so that the run is not over before the node is.
    """
    nodes = {node.node_id: node for node in (cluster.add_node(**SMALL) for _ in range(num_more))}
    # Saved in the foreground, so that the checkpoint of step 3 is there when step 5 begins.
    options = ["--max-steps", "6", "--workers", workers, "--set", "saving.in_background=false"]
    data, out = folder / "data", folder / "out"
    command = TrainCommand(data, out, folder / "faults", cluster.address, options)
    command.plan("step:1:hang:step 5")
    process = command.start()
    try:
        command.wait_for("step", "step 5", timeout=900)
        used = {e["node_id"] for e in read_events(out) if e["kind"] == "start"}
        assert len(used) == 2
        lost = min(used & nodes.keys())
        cluster.remove_node(nodes[lost], allow_graceful=False)
        output, _ = process.communicate(timeout=1200)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    last = [e["node_id"] for e in read_events(out) if e["kind"] == "start" and e["step"] == 3]
    assert lost not in last
    return out


def starts(out: Path) -> list[tuple[int, int]]:
    """(step, number of workers) of each start."""
    events = [e for e in read_events(out) if e["kind"] == "start" and e["rank"] == 0]
    return [(e["step"], e["world_size"]) for e in events]


def test_a_lost_node_is_replaced_and_the_bits_are_the_same(cluster: Any, tmp_path: Path) -> None:
    whole = debug_config(small_dataset(tmp_path / "data"), tmp_path / "whole")
    assert train_ranks(prepare(whole), 2) == [0, 0]
    out = train_through_a_lost_node(cluster, 2, tmp_path, "2")
    assert starts(out) == [(0, 2), (3, 2)]
    assert_same_bits(out, tmp_path / "whole", 6)


def test_an_elastic_run_goes_on_with_the_nodes_that_are_left(cluster: Any, tmp_path: Path) -> None:
    train_here(debug_config(small_dataset(tmp_path / "data"), tmp_path / "alone"))
    out = train_through_a_lost_node(cluster, 1, tmp_path, "1-2")
    assert starts(out) == [(0, 2), (3, 1)]
    assert_same_weights(out, tmp_path / "alone", 6)
