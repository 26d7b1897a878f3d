"""The doctor on three nodes of which one is ill: it names that node and what is wrong.

The nodes are processes of one machine, each with faults of its own; the same on a cluster of three
nodes is the campaign of `test_doctor_cluster.py`.
"""

from __future__ import annotations

import json

import pytest

from hymotion_ray.config.doctor import DoctorConfig, Grades
from hymotion_ray.engine.doctor.examiner import Examiner
from hymotion_ray.engine.doctor.faults import VARIABLE
from hymotion_ray.engine.doctor.job import examine, quick_check
from hymotion_ray.engine.doctor.pairs import Examined

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def findings(ray, places, old_packages):
    """What is found of three processes of which the second has every fault at once."""
    faults = {
        "clock_s": 90,
        "shm_bytes": 64_000_000,
        "share": str(places / "stale"),
        "blocked": ["object manager"],
        "absent": True,
    }
    ill = {VARIABLE: json.dumps(faults), "PYTHONPATH": str(old_packages)}
    (node,) = [n for n in ray.nodes() if n["Alive"]]
    ports = {"object manager": int(node["ObjectManagerPort"])}
    nodes = []
    for name, variables in (("well-1", {}), ("ill", ill), ("well-2", {})):
        actor = ray.remote(Examiner).options(
            num_cpus=0, max_concurrency=4, runtime_env={"env_vars": variables}
        )
        ip = node["NodeManagerAddress"]
        nodes.append(Examined(name=name, ip=ip, ports=ports, actor=actor.remote(ip)))
    ray.get([n.actor.prepare.remote() for n in nodes], timeout=280)
    config = DoctorConfig(
        shares=(str(places / "share"),), transfer_mb=4, timeout_s=90, collective_timeout_s=10
    )
    yield examine(nodes, config, lambda line: None)
    for examined in nodes:
        ray.kill(examined.actor)


def _of(findings, check):
    return [f for f in findings if f.check == check and f.level != "ok"]


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("versions", "torch 1.9.0, elsewhere"),
        ("clock", "+90."),
        ("shm", "0.1 GB, 1 GB wanted"),
        ("share", "is not there"),
    ],
)
def test_the_ill_node_and_what_ails_it_are_named(findings, check, words):
    (finding,) = _of(findings, check)
    assert finding.node == "ill"
    assert words in finding.found
    assert finding.level == "failure"
    assert finding.advice


def test_a_blocked_port_is_named_with_its_direction(findings):
    blocked = _of(findings, "ports")
    assert [f.node for f in blocked] == ["ill -> well-1", "ill -> well-2"]
    for finding in blocked:
        assert finding.found.startswith("object manager (")
        assert finding.found.endswith("the other way is open")


def test_who_does_not_come_to_the_all_reduce_is_named(findings):
    (finding,) = _of(findings, "all_reduce")
    assert finding.node == "ill"
    assert "did not come to the group within 10 s" in finding.found


def test_the_well_nodes_have_nothing_but_what_they_share_with_the_machine(findings):
    machine = ("names", "disk", "memory", "open_files")
    wrong = [f for f in findings if f.level != "ok" and f.check not in machine]
    assert [f for f in wrong if "ill" not in f.node] == []
    assert [f.level for f in findings if f.check == "bandwidth"] == ["ok"]


def test_the_quick_form_asks_each_node(ray):
    checks = {f.check for f in quick_check(Grades(memory_gb=1e6), timeout_s=200)}
    assert "memory" in checks
    assert not checks & {"ports", "share", "bandwidth", "all_reduce", "versions", "clock"}
