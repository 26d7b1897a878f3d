"""checkov, the policy checker, over pods and Dockerfile. In a venv of its own: it pins much."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from k8s_objects import ENTRIES, K8S, build
from test_schemas import PLAIN, as_pods

SKIPPED = {
    "CKV_K8S_43": "images are pinned by the digest that the user pushed (overlays/parts/images)",
    "CKV_K8S_21": "pods of Ray objects get the namespace of their object",
    "CKV_K8S_40": "the user is the base image's, 1000, and Redis' own, 999",
    "CKV_K8S_38": "the head's autoscaler talks to the API server; no other pod mounts a token",
    "CKV_K8S_35": "the webhook's secret is read from the environment, as a Ray actor needs it",
    "CKV_K8S_15": "images are pinned, so that Always would only ask the registry again",
    "CKV_K8S_8": "submitters and init containers end by themselves",
    "CKV_K8S_9": "readiness of Ray pods is the operator's, which asks the Serve proxy",
}
"""Checks left out, and why."""


@pytest.fixture(scope="module")
def checkov(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = os.environ.get("CHECKOV") or shutil.which("checkov")
    if found:
        return found
    place = tmp_path_factory.mktemp("checkov")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([str(place / "bin" / "pip"), "install", "-qq", "checkov"], check=True)
    return str(place / "bin" / "checkov")


def failed(checkov: str, folder: Path, framework: str) -> dict[str, list[str]]:
    """Failed checks and where."""
    command = [
        *(checkov, "--directory", str(folder), "--framework", framework, "--skip-download"),
        *("--quiet", "--compact", "--output", "json", "--skip-check", ",".join(SKIPPED)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert not report.get("summary", {}).get("parsing_errors")
    found: dict[str, list[str]] = {}
    for check in report.get("results", {}).get("failed_checks", []):
        text = f"{check['check_id']} {check['check_name']}"
        found.setdefault(text, []).append(check["resource"])
    return found


@pytest.mark.slow
def test_pods_and_plain_objects_pass(checkov: str, tmp_path: Path) -> None:
    for entry in ["base/platform", *ENTRIES]:
        objects = [d for d in build(entry) if d["kind"] in PLAIN]
        for document in build(entry):
            if document["kind"].startswith("Ray"):
                objects += as_pods(document)
        (tmp_path / f"{entry.replace('/', '-')}.yaml").write_text(yaml.safe_dump_all(objects))
    assert failed(checkov, tmp_path, "kubernetes") == {}


@pytest.mark.slow
def test_the_dockerfile_passes(checkov: str, tmp_path: Path) -> None:
    shutil.copy(K8S.parent / "image" / "Dockerfile", tmp_path)
    assert failed(checkov, tmp_path, "dockerfile") == {}
