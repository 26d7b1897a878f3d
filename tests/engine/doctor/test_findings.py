"""The rules of the doctor, by facts: node and cause are named, well nodes raise nothing."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hymotion_ray.config.doctor import DoctorConfig, Grades
from hymotion_ray.engine.doctor.facts import Gpu, NodeFacts, code_digest, node_facts
from hymotion_ray.engine.doctor.findings import (
    Finding,
    judge_bandwidth,
    judge_clock,
    judge_nodes,
)
from hymotion_ray.engine.doctor.links import Listener, can_reach, send
from hymotion_ray.engine.doctor.pairs import Examined, _outsiders, rounds
from hymotion_ray.engine.doctor.report import DoctorReport
from hymotion_ray.errors import ConfigError

A100 = Gpu(name="NVIDIA A100-SXM4-80GB", memory_bytes=85 * 10**9, has_bf16=True)
WELL = NodeFacts(
    host="node",
    ip="10.0.0.1",
    versions={"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0+cu128", "code": "abc"},
    cuda="12.8",
    driver="570.1",
    gpus=[A100] * 8,
    num_cpus=96,
    memory_bytes=10**12,
    shm_bytes=10**11,
    disk_free_bytes=10**12,
    open_files=65536,
    clock=0.0,
    forward=["10.0.0.1"],
    reverse="node",
    interfaces={"eth0": 25_000},
    interface="eth0",
    infiniband=[],
    communication={},
)


def _wrong(grades=None, **changed):
    """Findings that are not ok of a cluster of three, of which `b` differs."""
    facts = {"a": WELL, "b": dataclasses.replace(WELL, **changed), "c": WELL}
    return [f for f in judge_nodes(facts, grades or Grades()) if f.level != "ok"]


def test_like_and_well_nodes_raise_nothing():
    assert _wrong() == []
    assert _wrong(Grades(gpus=8, memory_gb=128, gpu_memory_gb=80)) == []


@pytest.mark.parametrize(
    ("changed", "grades", "check", "level", "words"),
    [
        ({"versions": {**WELL.versions, "torch": "2.9.0"}}, {}, "versions", "failure", "torch 2.9"),
        ({"versions": {**WELL.versions, "code": "xyz"}}, {}, "versions", "failure", "code xyz"),
        ({"versions": {**WELL.versions, "scipy": "1"}}, {}, "versions", "warning", "scipy 1"),
        ({"shm_bytes": 64 * 10**6}, {}, "shm", "failure", "0.1 GB, 1 GB wanted"),
        ({"disk_free_bytes": 10**9}, {}, "disk", "failure", "1.0 GB, 5 GB wanted"),
        ({"open_files": 1024}, {}, "open_files", "warning", "1024 open files, 8192 wanted"),
        ({"gpus": [A100] * 7}, {"gpus": 8}, "gpus", "failure", "7 GPUs, 8 wanted"),
        ({"memory_bytes": 64 * 10**9}, {"memory_gb": 128}, "memory", "failure", "64.0 GB"),
        ({"cuda": None}, {}, "gpus", "failure", "without CUDA"),
        ({"forward": []}, {}, "names", "warning", "leads to no address"),
        ({"forward": ["127.0.1.1"]}, {}, "names", "warning", "Ray uses 10.0.0.1"),
        ({"reverse": None}, {}, "names", "warning", "leads to no name"),
    ],
)
def test_node_and_cause_are_named(changed, grades, check, level, words):
    found = _wrong(Grades(**grades), **changed)
    assert [(f.node, f.check, f.level) for f in found] == [("b", check, level)]
    assert words in found[0].found
    assert found[0].advice


def test_builds_of_one_torch_agree_and_the_command_is_compared_too():
    assert _wrong(versions={**WELL.versions, "torch": "2.13.0+cpu"}) == []
    here = {**WELL.versions, "code": "xyz"}
    found = list(judge_nodes({"a": WELL, "b": WELL}, Grades(), here))
    assert [(f.node, f.found) for f in found if f.level != "ok"] == [
        ("this command", "code xyz, elsewhere abc")
    ]
    same = judge_nodes({"a": WELL, "b": WELL}, Grades(), WELL.versions)
    assert "this command" not in {f.node for f in same}


def test_drivers_that_differ_and_old_rays_are_told():
    assert [f.check for f in _wrong(driver="535.0")] == ["drivers"]
    old = {**WELL.versions, "ray": "2.50.0"}
    facts = {name: dataclasses.replace(WELL, versions=old) for name in "ab"}
    found = [f for f in judge_nodes(facts, Grades()) if f.level != "ok"]
    assert {(f.node, f.check) for f in found} == {("a", "ray"), ("b", "ray")}


def test_nodes_without_gpus_are_well_unless_all_are_and_some_are_wanted():
    assert _wrong(Grades(gpus=8), gpus=[]) == []
    facts = {name: dataclasses.replace(WELL, gpus=[]) for name in "ab"}
    assert [f for f in judge_nodes(facts, Grades()) if f.level != "ok"] == []
    (found,) = [f for f in judge_nodes(facts, Grades(gpus=8)) if f.level != "ok"]
    assert (found.node, found.check, found.level) == ("cluster", "gpus", "failure")
    assert found.found == "no GPU on any node, 8 a node wanted"


def test_interfaces_for_nccl_are_suggested():
    many = {"eth0": 25_000, "docker0": None}
    facts = {"a": dataclasses.replace(WELL, interfaces=many, infiniband=["mlx5_0", "mlx5_1"])}
    found = next(f for f in judge_nodes(facts, Grades()) if f.check == "network")
    assert "NCCL_SOCKET_IFNAME=eth0" in found.advice
    assert "NCCL_IB_HCA=mlx5_0,mlx5_1" in found.advice


def test_a_clock_is_off_only_beyond_what_the_question_took():
    assert judge_clock("a", 1.5, 0.1, Grades()).level == "failure"
    assert judge_clock("a", -1.5, 0.1, Grades()).level == "failure"
    assert judge_clock("a", 1.5, 0.7, Grades()).level == "ok"


def test_slow_pairs_are_named_by_grade_and_by_the_others():
    rates = {("a", "b"): 20.0, ("b", "c"): 21.0, ("c", "a"): 2.0}
    (finding,) = judge_bandwidth(rates, Grades())
    assert (finding.node, finding.level) == ("c -> a", "warning")
    graded = list(judge_bandwidth(rates, Grades(gbit_s=20.5)))
    assert [(f.node, f.level) for f in graded] == [("a -> b", "failure"), ("c -> a", "failure")]
    (well,) = judge_bandwidth({("a", "b"): 3.0}, Grades())
    assert well.level == "ok"


@pytest.mark.parametrize("num_nodes", [2, 3, 6, 7])
def test_rounds_bring_every_pair_together_once(num_nodes):
    nodes = [Examined(name=str(k), ip="", ports={}, actor=None) for k in range(num_nodes)]
    met = []
    for pairs in rounds(nodes):
        busy = [node.name for pair in pairs for node in pair]
        assert len(set(busy)) == len(busy)
        met += [frozenset((a.name, b.name)) for a, b in pairs]
    assert len(met) == len(set(met)) == num_nodes * (num_nodes - 1) // 2


def test_the_node_apart_is_blamed_not_those_that_miss_its_file():
    wrong = {
        "a": ["what b wrote is not there"],
        "b": ["what a wrote is not there"],
        "c": ["what b wrote is not there"],
    }
    assert _outsiders(wrong, 3) == ["b"]
    assert _outsiders({"b": ["cannot write: no permission"]}, 3) == ["b"]
    two = {"a": ["what b wrote is not there"], "b": ["what a wrote is not there"]}
    assert _outsiders(two, 2) == ["a", "b"]


# --- looking --------------------------------------------------------------------------------------


def test_this_machine_has_facts(tmp_path):
    facts = node_facts("127.0.0.1", str(tmp_path))
    assert facts.versions["python"].startswith("3.")
    assert {"ray", "torch", "code"} <= set(facts.versions)
    assert min(facts.memory_bytes, facts.disk_free_bytes, facts.num_cpus) > 0
    assert facts.versions["code"] == code_digest()
    assert json.dumps(dataclasses.asdict(facts))


def test_ports_are_reached_or_not_and_bytes_are_timed():
    listener = Listener("127.0.0.1")
    assert can_reach("127.0.0.1", listener.port, "torch") is None
    assert send("127.0.0.1", listener.port, 1 << 22) > 0
    with pytest.raises(OSError, match="in use"):
        Listener("127.0.0.1", listener.port)
    listener.close()
    closed = Listener("127.0.0.1")
    port = closed.port
    closed.close()
    assert "refused" in (can_reach("127.0.0.1", port + 1, "torch") or "refused")


def test_faults_are_inert_unless_named(monkeypatch, tmp_path):
    faults = {"clock_s": 100, "shm_bytes": 5, "blocked": ["gcs"], "names": True}
    monkeypatch.setenv("HYMOTION_DOCTOR_FAULTS", json.dumps(faults))
    facts = node_facts("127.0.0.1", str(tmp_path))
    assert (facts.shm_bytes, facts.forward, facts.reverse) == (5, [], None)
    assert can_reach("127.0.0.1", 1, "gcs") == "blocked on purpose"
    monkeypatch.delenv("HYMOTION_DOCTOR_FAULTS")
    assert node_facts("127.0.0.1", str(tmp_path)).clock < facts.clock - 90


# --- the report -----------------------------------------------------------------------------------


def _finding(node, level, check="shm", advice="enlarge it"):
    return Finding(node=node, check=check, level=level, found=f"{level} here", advice=advice)


def test_the_worst_comes_first_and_gives_the_exit_code():
    findings = [_finding("a", "ok"), _finding("b", "warning"), _finding("c", "failure")]
    for count, code in ((1, 0), (2, 1), (3, 3)):
        assert DoctorReport(3, findings[:count]).exit_code == code
    report = DoctorReport(3, findings)
    lines = report.words().splitlines()
    assert lines[1].split()[:3] == ["failure", "shm", "c"]
    assert any(line.startswith("- enlarge it") for line in lines)
    assert lines[-1].endswith("1 failures, 1 warnings")
    levels = [f["level"] for f in report.to_mapping()["findings"]]
    assert levels == ["failure", "warning", "ok"]


def test_what_is_well_alike_on_many_nodes_is_one_line():
    findings = [_finding(f"n{k}", "ok", advice="") for k in range(50)]
    lines = DoctorReport(50, findings).words().splitlines()
    assert lines[1].split()[:4] == ["ok", "shm", "50", "nodes"]
    assert len(lines) == 4


def test_settings_outside_of_what_is_allowed_are_refused():
    with pytest.raises(ConfigError, match="ports"):
        DoctorConfig(ports=(70_000,))
    with pytest.raises(ConfigError, match=r"grades\.gpus"):
        Grades(gpus=-1)
