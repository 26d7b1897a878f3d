"""The doctor on a cluster of three nodes of which one is ill: a campaign, as `test_doctor.py`."""

from __future__ import annotations

import json

import pytest

from hymotion_ray.config.doctor import DoctorConfig
from hymotion_ray.engine.doctor.faults import VARIABLE
from hymotion_ray.engine.doctor.job import quick_check, run_doctor

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def report(no_session_ray, places, old_packages):
    """What the doctor finds on a cluster whose second node has every fault at once."""
    import ray
    from ray.cluster_utils import Cluster

    faults = {
        "clock_s": 90,
        "shm_bytes": 64_000_000,
        "share": str(places / "stale"),
        "blocked": ["object manager"],
        "absent": True,
    }
    small = {"object_store_memory": 80 * 1024 * 1024}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, **small},
    )
    try:
        ill = cluster.add_node(
            num_cpus=1,
            env_vars={VARIABLE: json.dumps(faults), "PYTHONPATH": str(old_packages)},
            **small,
        )
        cluster.add_node(num_cpus=1, **small)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        config = DoctorConfig(
            shares=(str(places / "share"),),
            transfer_mb=4,
            timeout_s=90,
            collective_timeout_s=10,
        )
        found = run_doctor(config, lambda line: None)
        yield found, ill.node_id[:8], quick_check()
    finally:
        ray.shutdown()
        cluster.shutdown()


def _of(report, check):
    return [f for f in report.findings if f.check == check and f.level != "ok"]


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("versions", "torch 1.9.0, elsewhere"),
        ("clock", "+90."),
        ("shm", "0.1 GB, 1 GB wanted"),
        ("share", "is not there"),
    ],
)
def test_the_ill_node_and_what_ails_it_are_named(report, check, words):
    found, ill, _ = report
    (finding,) = _of(found, check)
    assert ill in finding.node
    assert words in finding.found
    assert finding.level == "failure"
    assert finding.advice


def test_a_blocked_port_is_named_with_its_direction(report):
    found, ill, _ = report
    blocked = _of(found, "ports")
    assert len(blocked) == 2
    for finding in blocked:
        source, target = finding.node.split(" -> ")
        assert ill in source
        assert ill not in target
        assert finding.found.startswith("object manager (")
        assert finding.found.endswith("the other way is open")


def test_who_does_not_come_to_the_all_reduce_is_named(report):
    found, ill, _ = report
    (finding,) = _of(found, "all_reduce")
    assert ill in finding.node
    assert "did not come to the group within 10 s" in finding.found


def test_the_well_nodes_have_nothing_but_what_they_share_with_the_machine(report):
    found, ill, _ = report
    own = ("versions", "clock", "shm", "share", "process", "gpus", "memory")
    assert [
        f for f in found.findings if f.level != "ok" and f.check in own and ill not in f.node
    ] == []
    assert [f.level for f in found.findings if f.check == "bandwidth"] == ["ok"]
    assert found.exit_code == 3


def test_the_quick_form_tells_what_each_node_says_of_itself(report):
    _, ill, quick = report
    assert {"versions", "clock", "shm"} <= {f.check for f in quick if ill in f.node}
    assert not {f.check for f in quick} & {"ports", "share", "bandwidth", "all_reduce"}
