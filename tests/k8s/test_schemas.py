"""Every manifest against the schemas of its kinds, and the linter against broken manifests."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from k8s_objects import BASES, ENTRIES, K8S, RAY_KINDS, build, lint, load, one, ray_cluster, schema

KUBERNETES = "1.35"
PLAIN = {
    "ConfigMap", "Ingress", "LimitRange", "Namespace", "NetworkPolicy", "PersistentVolume",
    "PersistentVolumeClaim", "PodDisruptionBudget", "PriorityClass", "ResourceQuota", "Service",
    "ServiceAccount", "StatefulSet",
}  # fmt: skip
OF_OTHERS = {
    "ClusterQueue", "Gateway", "HTTPRoute", "LocalQueue", "PodMonitor", "PrometheusRule",
    "ResourceFlavor",
}  # fmt: skip


def as_pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a Ray object as Pods, which the tools for built-in kinds know."""
    spec = ray_cluster(document)
    groups = [("head", spec["headGroupSpec"])]
    groups += [(g["groupName"], g) for g in spec["workerGroupSpecs"]]
    templates = [(name, group["template"]) for name, group in groups]
    if "submitterPodTemplate" in document["spec"]:
        templates.append(("submitter", document["spec"]["submitterPodTemplate"]))
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template.get("metadata", {}), "name": name},
            "spec": template["spec"],
        }
        for name, template in templates
    ]


@pytest.mark.parametrize("entry", [*BASES, *ENTRIES])
def test_objects_keep_to_the_schemas_of_their_kinds(entry: str) -> None:
    for document in build(entry):
        kind = document["kind"]
        if kind in RAY_KINDS:
            jsonschema.Draft202012Validator(schema(kind)).validate(document)
            for pod in as_pods(document):
                kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        elif kind in PLAIN:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        else:
            assert kind in OF_OTHERS


@pytest.mark.parametrize("entry", [*BASES, *ENTRIES])
def test_objects_keep_to_the_rules_of_operator_and_project(entry: str) -> None:
    assert lint.findings(build(entry)) == []


def test_overlays_hold_patches_only_and_bases_none() -> None:
    """Objects are said in base/ and changed in overlays/."""
    for path in K8S.glob("base/**/*.yaml"):
        assert "patches:" not in path.read_text(), path
    for path in K8S.glob("overlays/**/*.yaml"):
        if path.name != "kustomization.yaml":
            assert all("op" in each for each in load(path.read_text())[0]), path


def test_what_the_schema_must_refuse() -> None:
    """The strict reading finds what the API server would drop without a word."""
    service = one(build("overlays/mixed/service"), "RayService")
    for change in (
        lambda d: d["spec"].update(rayClusterSpec={}),  # the key of a RayJob
        lambda d: d["spec"].update(exludeHeadPodFromServeSvc=True),
        lambda d: ray_cluster(d)["workerGroupSpecs"][0].update(minReplica=1),
        lambda d: ray_cluster(d)["workerGroupSpecs"][0].update(maxReplicas="4"),
        lambda d: ray_cluster(d)["autoscalerOptions"].update(version="v3"),
        lambda d: ray_cluster(d)["headGroupSpec"]["template"]["spec"].update(container=[]),
    ):
        broken = copy.deepcopy(service)
        change(broken)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema("RayService")).validate(broken)


def container(document: dict[str, Any], group: int = 1) -> dict[str, Any]:
    return ray_cluster(document)["workerGroupSpecs"][group]["template"]["spec"]["containers"][0]


def head(document: dict[str, Any]) -> dict[str, Any]:
    return ray_cluster(document)["headGroupSpec"]


BROKEN_SERVICES = {
    "47": lambda d: d["metadata"].update(name="m" * 48),
    "DNS-1035": lambda d: d["metadata"].update(name="1motion"),
    "at least 2.54.0": lambda d: ray_cluster(d).update(rayVersion="2.53.0"),
    "the word token": lambda d: ray_cluster(d)["authOptions"].pop("mode"),
    "no work on the head": lambda d: head(d)["resources"].update(CPU="1"),
    "the head asks for a GPU": lambda d: lint.limits_of(head(d)).update({"nvidia.com/gpu": "1"}),
    "no CPU group": lambda d: ray_cluster(d)["workerGroupSpecs"].pop(0),
    "beside or instead of gcsFault": lambda d: head(d)["rayStartParams"].update(
        {"redis-password": "x"}
    ),
    "needs autoscalerOptions.version: v2": lambda d: (
        ray_cluster(d)["workerGroupSpecs"][1].update(priority=5),
        ray_cluster(d)["autoscalerOptions"].update(version="v1"),
    ),
    "RAY_enable_autoscaler_v2": lambda d: lint.ray_container(head(d))["env"].append(
        {"name": "RAY_enable_autoscaler_v2", "value": "1"}
    ),
    "restartPolicy": lambda d: head(d)["template"]["spec"].update(restartPolicy="Always"),
    "in rayStartParams and resources": lambda d: ray_cluster(d)["workerGroupSpecs"][1][
        "rayStartParams"
    ].update({"num-gpus": "1"}),
    "the operator wants them in the group": lambda d: ray_cluster(d)["workerGroupSpecs"][1][
        "rayStartParams"
    ].update(labels="a=b"),
    "request and limit differ": lambda d: lint.limits_of(head(d)).update(memory="64Gi"),
    "must rise": lambda d: ray_cluster(d)["workerGroupSpecs"][1]["rayStartParams"].update(
        {"object-store-memory": "30000000000"}
    ),
    "minReplicas <= replicas": lambda d: ray_cluster(d)["workerGroupSpecs"][1].update(
        minReplicas=9
    ),
    "splits no fraction over two": lambda d: container(d)["resources"]["limits"].update(
        {"nvidia.com/gpu": "2"}
    ),
    "MIG slices are not counted": lambda d: (
        ray_cluster(d)["workerGroupSpecs"][1]["resources"].pop("GPU"),
        container(d)["resources"]["limits"].update({"nvidia.com/mig-3g.40gb": "1"}),
    ),
    "would never start this pool": lambda d: ray_cluster(d)["workerGroupSpecs"][1].pop("labels"),
    "does not tolerate": lambda d: ray_cluster(d)["workerGroupSpecs"][1]["template"]["spec"].pop(
        "tolerations"
    ),
    "does not divide 1": lambda d: d["spec"].update(
        serveConfigV2=d["spec"]["serveConfigV2"].replace("gpus: 0.5", "gpus: 0.6")
    ),
    "neither http.keys_file": lambda d: d["spec"].update(
        serveConfigV2=d["spec"]["serveConfigV2"].replace("keys_file: /keys/keys.yaml", "page: true")
    ),
    "excludeHeadPodFromServeSvc": lambda d: d["spec"].pop("excludeHeadPodFromServeSvc"),
    "initializing-timeout": lambda d: d["metadata"]["annotations"].update(
        {"ray.io/initializing-timeout": "soon"}
    ),
    "0 < step <= surge": lambda d: d["spec"].update(
        upgradeStrategy={
            "type": "NewClusterWithIncrementalUpgrade",
            "clusterUpgradeOptions": {"stepSizePercent": 50, "maxSurgePercent": 25},
        }
    ),
    "have no meaning": lambda d: d["spec"].update(
        upgradeStrategy={"type": "None", "clusterUpgradeOptions": {"gatewayClassName": "istio"}}
    ),
    "not root": lambda d: head(d)["template"]["spec"]["securityContext"].pop("runAsUser"),
    "readOnlyRootFilesystem": lambda d: container(d)["securityContext"].pop(
        "readOnlyRootFilesystem"
    ),
    "none added": lambda d: container(d)["securityContext"]["capabilities"].update(
        add=["IPC_LOCK"]
    ),
    "a host path": lambda d: head(d)["template"]["spec"]["volumes"].append(
        {"name": "h", "hostPath": {"path": "/var"}}
    ),
    "no sizeLimit": lambda d: head(d)["template"]["spec"]["volumes"][0].update(emptyDir={}),
    "neither version nor digest": lambda d: container(d).update(image="r.example:5000/ray"),
    "no limits of cpu": lambda d: container(d)["resources"]["limits"].pop("cpu"),
    "which is no volume": lambda d: container(d)["volumeMounts"].append(
        {"name": "else", "mountPath": "/e"}
    ),
    "stands in the open": lambda d: container(d)["env"].append(
        {"name": "AWS_SECRET_ACCESS_KEY", "value": "x"}
    ),
}


@pytest.mark.parametrize("words", BROKEN_SERVICES)
def test_the_linter_finds_a_broken_service(words: str) -> None:
    service = copy.deepcopy(one(build("overlays/mixed/service"), "RayService"))
    BROKEN_SERVICES[words](service)
    assert any(words in line for line in lint.findings([service])), lint.findings([service])


BROKEN_JOBS = {
    "hold its GPUs": lambda d: d["spec"].pop("preRunningDeadlineSeconds"),
    "exclude each other": lambda d: d["spec"].update(shutdownAfterJobFinishes=True),
    "nothing deletes the cluster": lambda d: d["spec"].pop("deletionStrategy"),
    "is refused while": lambda d: d["spec"]["deletionStrategy"]["deletionRules"][0].update(
        policy="DeleteWorkers"
    ),
    "must rise from workers": lambda d: d["spec"]["deletionStrategy"]["deletionRules"][0][
        "condition"
    ].update(ttlSeconds=10**9),
    "and not both": lambda d: d["spec"]["deletionStrategy"]["deletionRules"][0]["condition"].update(
        jobDeploymentStatus="Failed"
    ),
    "two rules": lambda d: d["spec"]["deletionStrategy"]["deletionRules"].append(
        d["spec"]["deletionStrategy"]["deletionRules"][0]
    ),
    "only jobs with shutdown": lambda d: d["metadata"]["labels"].update({lint.QUEUE_LABEL: "q"}),
    "suspend needs": lambda d: d["spec"].update(suspend=True),
    "no backoffLimit": lambda d: d["spec"].update(submissionMode="InteractiveMode"),
    "no submitterPodTemplate": lambda d: d["spec"].pop("submitterPodTemplate"),
    "shown by the jobs API": lambda d: d["spec"].update(runtimeEnvYAML="env_vars: {A: b}"),
    "neither rayClusterSpec": lambda d: d["spec"].pop("rayClusterSpec"),
}


@pytest.mark.parametrize("words", BROKEN_JOBS)
def test_the_linter_finds_a_broken_job(words: str) -> None:
    job = copy.deepcopy(one(build("overlays/mixed/render"), "RayJob"))
    BROKEN_JOBS[words](job)
    assert any(words in line for line in lint.findings([job])), lint.findings([job])


def test_a_budget_over_ray_pods_is_a_plain_number() -> None:
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {}}
    for spec, is_right in (({"minAvailable": 1}, True), ({"maxUnavailable": 1}, False)):
        assert (lint.findings([{**budget, "spec": spec}]) == []) == is_right


def test_no_secret_is_in_the_tree() -> None:
    secret = {"kind": "Secret", "metadata": {"name": "s"}}
    assert lint.findings([secret]) != []
    for entry in [*BASES, *ENTRIES]:
        assert "Secret" not in {document["kind"] for document in build(entry)}
