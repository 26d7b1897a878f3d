"""Alerts by promtool's unit tests, dashboards and monitors against what is really exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import ray
import yaml
from k8s_objects import HERE, K8S, build, one, ray_cluster

from hymotion_ray.engine.serve.metrics import SERIES

sys.path.insert(0, str(K8S))
import dashboards

DOCS = K8S.parent / "docs" / "operations.md"


def rules() -> dict:
    return one(build("base/monitoring"), "PrometheusRule")["spec"]


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).parent / "promtool"
    program = str(beside) if beside.exists() else shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool: run `make promtool`")
    return subprocess.run([program, *arguments], capture_output=True, text=True, cwd=cwd)


def test_alerts_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    shutil.copy(HERE / "alerts.yaml", tmp_path / "alerts.yaml")
    checked = promtool("check", "rules", "rules.yaml", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", "alerts.yaml", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_unit_test_and_an_entry_in_the_runbook() -> None:
    alerts = {rule["alert"]: rule for group in rules()["groups"] for rule in group["rules"]}
    tests = yaml.safe_load((HERE / "alerts.yaml").read_text())["tests"]
    fired = {
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired == set(alerts)
    headings = re.findall(r"^### (\w+)$", DOCS.read_text(), flags=re.MULTILINE)
    assert set(alerts) <= set(headings)
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"


@cache
def exported() -> frozenset[str]:
    """Names of series that our serving and Ray export, all those of a histogram included."""
    ours = set()
    for series in SERIES:
        suffixes = ("_bucket", "_sum", "_count") if series.kind == "histogram" else ("",)
        ours |= {series.exported + suffix for suffix in suffixes}
    package = Path(ray.__file__).parent
    told = "".join(
        path.read_text()
        for path in (
            *package.glob("dashboard/modules/metrics/dashboards/*_panels.py"),
            package / "autoscaler/_private/prom_metrics.py",
        )
    )
    rays = set(re.findall(r"\bray_(?:node|train|actors|object|tasks)[a-z_]*", told))
    scaler = {f"autoscaler_{name}" for name in re.findall(r'^\s+"([a-z_]+)",$', told, re.MULTILINE)}
    return frozenset(ours | rays | scaler | {"up"})


def named(expr: str) -> set[str]:
    """Series that an expression names."""
    return set(
        re.findall(r"\b(?:ray|autoscaler)_[a-z_]+(?=[{\[ )]|$)", re.sub(r"by \([^)]*\)", "", expr))
    )


def test_alerts_and_dashboards_name_only_series_that_exist() -> None:
    expressions = [rule["expr"] for group in rules()["groups"] for rule in group["rules"]]
    for name in dashboards.DASHBOARDS:
        for panel in dashboards.dashboard(name)["panels"]:
            expressions += [target["expr"] for target in panel["targets"]]
    labels = {"ray_train_run_name", "ray_train_controller_state"}
    unknown = {s for e in expressions for s in named(e)} - exported() - labels
    assert unknown == set()


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_dashboards_in_the_tree_are_those_of_the_tables(name: str) -> None:
    path = dashboards.FOLDER / f"hymotion-{name}.json"
    assert path.read_text() == dashboards.text(name)
    panels = json.loads(path.read_text())["panels"]
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len(panels)


def test_monitors_name_ports_that_the_pods_have() -> None:
    spec = ray_cluster(one(build("overlays/mixed/service"), "RayService"))
    ports = {
        "head": spec["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"],
        "worker": spec["workerGroupSpecs"][2]["template"]["spec"]["containers"][0]["ports"],
    }
    for monitor in [d for d in build("base/monitoring") if d["kind"] == "PodMonitor"]:
        kind = monitor["spec"]["selector"]["matchLabels"]["ray.io/node-type"]
        wanted = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
        assert wanted <= {port["name"] for port in ports[kind]}
