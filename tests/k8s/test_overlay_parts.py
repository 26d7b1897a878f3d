"""The parts that no overlay uses by default, each built into one; and the node cache's script."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from k8s_objects import K8S, RAY_KINDS, build_text, lint, load, one, ray_cluster, schema

FILL = K8S / "base" / "node-cache" / "fill.sh"


def built(tmp_path: Path, resources: list[str], parts: list[str]) -> list[dict[str, Any]]:
    """A kustomization of these folders below k8s/, checked like those of the tree."""

    def names(folders: list[str]) -> list[str]:
        return [os.path.relpath(K8S / f, tmp_path.resolve()) for f in folders]

    text = {"namespace": "hymotion", "resources": names(resources), "components": names(parts)}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(text))
    objects = load(build_text(tmp_path))
    assert lint.findings(objects) == []
    for document in objects:
        if document["kind"] in RAY_KINDS:
            jsonschema.Draft202012Validator(schema(document["kind"])).validate(document)
    return objects


def test_an_upgrade_in_steps(tmp_path: Path) -> None:
    objects = built(tmp_path, ["overlays/mixed/service"], ["overlays/parts/incremental-upgrade"])
    strategy = one(objects, "RayService")["spec"]["upgradeStrategy"]
    assert strategy["type"] == "NewClusterWithIncrementalUpgrade"
    assert "Ingress" not in {document["kind"] for document in objects}


def test_a_gateway_in_place_of_the_ingress(tmp_path: Path) -> None:
    objects = built(tmp_path, ["base/platform", "overlays/a10/service"], ["overlays/parts/gateway"])
    kinds = {document["kind"] for document in objects}
    assert {"Gateway", "HTTPRoute"} < kinds
    assert "Ingress" not in kinds
    listener = one(objects, "Gateway")["spec"]["listeners"][0]
    assert listener["protocol"] == "HTTPS"
    (route,) = one(objects, "HTTPRoute")["spec"]["rules"][0]["backendRefs"]
    assert route == {"name": "hymotion-serve-svc", "port": 8000}


CLUSTER = ["base/cluster"]
IMAGES = ["overlays/parts/images"]


def test_slices_of_a_card_count_as_gpus(tmp_path: Path) -> None:
    cluster = one(built(tmp_path, CLUSTER, ["overlays/parts/mig", *IMAGES]), "RayCluster")
    group = ray_cluster(cluster)["workerGroupSpecs"][2]
    assert group["resources"]["GPU"] == "1"
    assert lint.num_gpus(group) == 1


def test_training_pods_by_rdma(tmp_path: Path) -> None:
    cluster = one(built(tmp_path, CLUSTER, ["overlays/parts/rdma", *IMAGES]), "RayCluster")
    group = ray_cluster(cluster)["workerGroupSpecs"][2]
    assert lint.limits_of(group)["rdma/hca_shared_devices_a"] == "1"


def test_weights_from_the_nodes_own_disk(tmp_path: Path) -> None:
    objects = built(tmp_path, CLUSTER, ["overlays/parts/node-cache", *IMAGES])
    groups = ray_cluster(one(objects, "RayCluster"))["workerGroupSpecs"]
    for group in groups[1:]:
        pod = group["template"]["spec"]
        mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
        assert mounts["/models"] == "node-cache"
        (init,) = pod["initContainers"]
        assert {m["mountPath"] for m in init["volumeMounts"]} == {"/source", "/models", "/fill"}
    assert one(objects, "ConfigMap")["data"]["fill.sh"] == FILL.read_text()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source" / "motion"
    (folder / "text").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    (folder / "text" / "vocab.json").write_text("{}")
    return folder


def filling(source: Path, cache: Path) -> subprocess.Popen[bytes]:
    cache.mkdir(exist_ok=True)
    return subprocess.Popen(
        ["/bin/sh", str(FILL)],
        env={**os.environ, "SOURCE": str(source.parent), "CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".complete"
    }


def test_pods_that_start_at_once_copy_once(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pods = [filling(source, cache) for _ in range(4)]
    said = [pod.communicate(timeout=30) for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * 4, said
    assert sum(b"copying" in out for out, _ in said) == 1
    assert files(cache / "motion") == files(source)


def test_another_state_of_the_model_is_another_copy(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert filling(source, cache).wait(30) == 0
    old = (cache / "motion").resolve()
    (source / "model.safetensors").write_bytes(b"v" * 1001)
    assert filling(source, cache).wait(30) == 0
    new = (cache / "motion").resolve()
    assert files(new) == files(source)
    assert new != old
    assert old.is_dir(), "a pod may still read it"


def test_a_copy_cut_short_is_made_again(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert filling(source, cache).wait(30) == 0
    state = (cache / "motion").resolve()
    # As a kill leaves it: the part folder, half full, and no mark.
    state.rename(state.with_suffix(".part"))
    (state.with_suffix(".part") / ".complete").unlink()
    (state.with_suffix(".part") / "model.safetensors").write_bytes(b"w")
    assert filling(source, cache).wait(30) == 0
    assert files(cache / "motion") == files(source)
