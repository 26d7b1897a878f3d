"""What a job says of its nodes as it starts: commands on real nodes of which some are ill."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from hymotion_ray.engine.cluster import connect
from hymotion_ray.engine.doctor.at_start import warn_of_nodes
from hymotion_ray.engine.doctor.faults import VARIABLE
from hymotion_ray.errors import ClusterError

pytestmark = pytest.mark.ray


def test_a_command_of_another_version_than_the_nodes_is_stopped(ray, old_packages, monkeypatch):
    with connect() as cluster:
        warn_of_nodes(cluster, pytest.fail)  # one node: nothing to compare
        monkeypatch.syspath_prepend(old_packages)
        with pytest.raises(ClusterError, match=r"versions of this command: torch 1\.9\.0"):
            warn_of_nodes(dataclasses.replace(cluster, num_nodes=2), lambda line: None)


@pytest.mark.slow
def test_a_job_hears_of_ill_nodes_and_stops_for_another_version_only(old_packages, tmp_path):
    from ray.cluster_utils import Cluster

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a person walks\n")
    small = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **small})

    def render(out: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "hymotion_ray.cli", "render", str(prompts)]
        given = ["--model", "tiny", "--out", str(tmp_path / out), "--address", cluster.address]
        ended = subprocess.run([*command, *given], stderr=subprocess.PIPE, text=True, timeout=240)
        return ended.returncode, ended.stderr

    try:
        faults = json.dumps({"clock_s": 90, "shm_bytes": 64_000_000})
        ill = cluster.add_node(env_vars={VARIABLE: faults}, **small).node_id[:8]
        code, said = render("out")
        assert code == 0, said
        for start, words in (("failure: clock of ", "+90."), ("failure: shm of ", "0.1 GB, 1 GB")):
            (line,) = [line for line in said.splitlines() if line.startswith(start)]
            assert ill in line
            assert words in line
        old = cluster.add_node(env_vars={"PYTHONPATH": str(old_packages)}, **small).node_id[:8]
        code, said = render("other")
        assert code == 3, said
        (line,) = [line for line in said.splitlines() if line.startswith("Error: failure: version")]
        assert "torch 1.9.0, elsewhere" in line
        assert old in line
        assert ill not in line
    finally:
        cluster.shutdown()
