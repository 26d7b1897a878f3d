"""Rules for the manifests that no schema holds: the operator's own, and this project's.

    kubectl kustomize k8s/overlays/mixed/service | python k8s/lint.py

Prints one line a finding and ends with 1 when there is one. The operator (KubeRay 1.7) checks some
of this only when the object is there, and then says so in an event that nobody sees. Needs PyYAML
only; knows nothing of the cluster, and not whether Serve would take its config (tests/k8s does).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

Mapping = dict[str, Any]
RAY_FLOOR = (2, 54)
"""Below it the dashboard lets pages of other sites delete jobs (CVE-2026-27482)."""
LONGEST_NAME = {"RayCluster": 53, "RayService": 47, "RayJob": 47, "RayCronJob": 36}
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
TIMEOUT = "ray.io/initializing-timeout"
_SECRET = re.compile(r"KEY|TOKEN|PASSWORD|SECRET|CREDENTIAL")
_BYTES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 1e3, "M": 1e6, "G": 1e9}


def findings(documents: list[Mapping]) -> list[str]:
    """What is wrong with these objects, each as `Kind/name: what`."""
    checks = {
        "RayCluster": lambda d: cluster(d["spec"], d["metadata"].get("annotations", {})),
        "RayService": service,
        "RayJob": job,
        "PodDisruptionBudget": disruption,
        "StatefulSet": stateful_set,
        "Secret": lambda d: iter(["a Secret does not belong into the tree; make it by hand"]),
    }
    found = []
    for document in documents:
        kind, name = document["kind"], document["metadata"]["name"]
        for text in (*names(kind, name), *checks.get(kind, lambda d: iter(()))(document)):
            found.append(f"{kind}/{name}: {text}")
    return found


def names(kind: str, name: str) -> Iterator[str]:
    """The operator appends to names, so that some of them must be short."""
    longest = LONGEST_NAME.get(kind)
    if longest is None:
        return
    if len(name) > longest:
        yield f"the name has {len(name)} characters; the operator allows {longest}"
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield "the name must be a DNS-1035 label: a to z, 0 to 9 and -, a letter first"


# --- Ray's kinds ----------------------------------------------------------------------------------


def cluster(spec: Mapping, annotations: Mapping) -> Iterator[str]:
    """A RayCluster's spec, wherever it stands."""
    version = str(spec.get("rayVersion", ""))
    numbers = re.match(r"(\d+)\.(\d+)\.\d+$", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) < RAY_FLOOR:
        yield f"rayVersion is {version!r}; at least 2.54.0, and the image's own"
    if spec.get("authOptions", {}).get("mode") != "token":
        yield "authOptions.mode must be the word token; left out, the operator leaves it off"
    head = spec["headGroupSpec"]
    yield from fault_tolerance(spec, head, annotations)
    yield from scaling(spec)
    yield from group("head", head)
    if head.get("resources", {}).get("CPU") != "0" or head["resources"].get("GPU") != "0":
        yield 'headGroupSpec.resources must be CPU "0" and GPU "0": no work on the head'
    if num_gpus(head):
        yield "the head asks for a GPU"
    workers = spec.get("workerGroupSpecs", [])
    for worker in workers:
        yield from group(worker["groupName"], worker)
        yield from pool(worker)
    if any(num_gpus(w) for w in workers) and all(num_gpus(w) for w in workers):
        yield "there is no CPU group: the autoscaler would start GPU pods for CPU work"


def fault_tolerance(spec: Mapping, head: Mapping, annotations: Mapping) -> Iterator[str]:
    """State outside the head is asked for by gcsFaultToleranceOptions and nothing else."""
    environment = {e["name"] for e in ray_container(head).get("env", [])}
    params = head.get("rayStartParams", {})
    named = environment & {"RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME"}
    named |= set(params) & {"redis-password", "redis-username"}
    old = {"ray.io/ft-enabled", "ray.io/external-storage-namespace"} & set(annotations)
    if named or (old and "gcsFaultToleranceOptions" in spec):
        yield f"{', '.join(sorted(named | old))} beside or instead of gcsFaultToleranceOptions"


def scaling(spec: Mapping) -> Iterator[str]:
    """What autoscaler v2 needs, and what only v2 knows."""
    groups = spec.get("workerGroupSpecs", [])
    version = spec.get("autoscalerOptions", {}).get("version")
    is_on = spec.get("enableInTreeAutoscaling", False)
    for name in ("idleTimeoutSeconds", "priority"):
        holders = [g["groupName"] for g in groups if name in g]
        if holders and not (is_on and version == "v2"):
            yield f"{name} of {', '.join(holders)} needs autoscalerOptions.version: v2, in words"
    if not is_on:
        return
    if version != "v2":
        yield "autoscalerOptions.version must be v2: v1 knows no labels and no fallback"
    environment = ray_container(spec["headGroupSpec"]).get("env", [])
    if any(e["name"] == "RAY_enable_autoscaler_v2" for e in environment):
        yield "RAY_enable_autoscaler_v2 beside autoscalerOptions.version"
    yield from restricted("autoscaler", spec["autoscalerOptions"].get("securityContext", {}))
    for each in (spec["headGroupSpec"], *groups):
        if each["template"]["spec"].get("restartPolicy", "Never") != "Never":
            yield "restartPolicy must be Never or unset under autoscaler v2"
    if any(g.get("suspend") for g in groups):
        yield "a suspended group cannot be with the autoscaler"


def group(name: str, spec: Mapping) -> Iterator[str]:
    """Head or worker group: what is said twice, and its pod."""
    params = spec.get("rayStartParams", {})
    twice = {"num-cpus", "num-gpus", "memory", "resources"} & set(params)
    if twice and spec.get("resources"):
        yield f"{name}: {', '.join(sorted(twice))} in rayStartParams and resources in the group"
    if "labels" in params:
        yield f"{name}: labels in rayStartParams; the operator wants them in the group"
    template = spec["template"]["spec"]
    container = ray_container(spec)
    limits = container.get("resources", {}).get("limits", {})
    if "cpu" not in limits and "CPU" not in spec.get("resources", {}):
        yield f"{name}: no CPU limit; the autoscaler would stop"
    if container.get("resources", {}).get("requests", {}).get("memory") != limits.get("memory"):
        yield f"{name}: memory request and limit differ: the pod may be killed under pressure"
    shm = next((v for v in template.get("volumes", []) if v["name"] == "shm"), None)
    store = int(params.get("object-store-memory", 0))
    if shm is None or shm.get("emptyDir", {}).get("medium") != "Memory":
        yield f"{name}: no /dev/shm of its own"
    elif not 0 < store <= size(shm["emptyDir"]["sizeLimit"]) < size(limits.get("memory", "0")):
        yield f"{name}: object-store-memory, shm's sizeLimit and the memory limit must rise"
    for text in pod(template):
        yield f"{name}: {text}"


def pool(spec: Mapping) -> Iterator[str]:
    """A worker group."""
    name = spec["groupName"]
    least, most = spec.get("minReplicas", 0), spec.get("maxReplicas", 2**31)
    if not 0 <= least <= spec.get("replicas", least) <= most:
        yield f"{name}: minReplicas <= replicas <= maxReplicas does not hold"
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
        yield f"{name}: the group's name must be a DNS label"
    gpus = num_gpus(spec)
    if gpus > 1:
        yield f"{name}: {gpus} GPUs a pod; one, since Ray splits no fraction over two"
    slices = [k for k in limits_of(spec) if "/mig-" in k]
    said = spec.get("resources", {}).get("GPU")
    if slices and said is None:
        yield f"{name}: MIG slices are not counted by Ray; say resources.GPU"
    if gpus and said is not None and int(said) != gpus:
        yield f"{name}: resources.GPU is {said}, the pod has {gpus}"
    if gpus and not spec.get("labels"):
        yield f"{name}: no labels: a label selector would never start this pool"
    if gpus and "nvidia.com/gpu" not in [
        t.get("key") for t in spec["template"]["spec"].get("tolerations", [])
    ]:
        yield f"{name}: does not tolerate the taint of GPU nodes"


def service(document: Mapping) -> Iterator[str]:
    """A RayService."""
    spec, annotations = document["spec"], document["metadata"].get("annotations", {})
    yield from cluster(spec["rayClusterConfig"], annotations)
    if "serveConfigV2" not in spec:
        yield "no serveConfigV2"
    else:
        config = yaml.safe_load(spec["serveConfigV2"])
        yield from fractions(config)
        yield from keys(config)
    if not spec.get("excludeHeadPodFromServeSvc"):
        yield "excludeHeadPodFromServeSvc must be true: the head has no replica"
    timeout = str(annotations.get(TIMEOUT, ""))
    if not re.fullmatch(r"[1-9]\d*|([1-9]\d*[hms])+", timeout):
        yield f"annotation {TIMEOUT} is {timeout!r}; a duration such as 30m"
    if spec["rayClusterConfig"].get("headGroupSpec", {}).get("headService", {}).get("metadata"):
        yield "headService must have no name in a RayService"
    strategy = spec.get("upgradeStrategy", {})
    options = strategy.get("clusterUpgradeOptions")
    if strategy.get("type") == "NewClusterWithIncrementalUpgrade":
        options = options or {}
        step, surge = options.get("stepSizePercent", 0), options.get("maxSurgePercent", 100)
        if not 0 < step <= surge <= 100 or options.get("intervalSeconds", 0) <= 0:
            yield "clusterUpgradeOptions: 0 < step <= surge <= 100, and an interval above 0"
        if not options.get("gatewayClassName"):
            yield "clusterUpgradeOptions: no gatewayClassName"
        if not spec["rayClusterConfig"].get("enableInTreeAutoscaling"):
            yield "an incremental upgrade needs the autoscaler"
    elif options:
        yield f"clusterUpgradeOptions have no meaning with the type {strategy.get('type')}"


def fractions(config: Mapping) -> Iterator[str]:
    """GPU shares of a Serve config: they must divide 1, or cards cannot be filled."""

    def shares(node: Any) -> Iterator[tuple[str, float]]:
        if isinstance(node, dict):
            for key, value in node.items():
                if key in ("gpus", "num_gpus") and isinstance(value, int | float):
                    yield key, float(value)
                yield from shares(value)
        elif isinstance(node, list):
            for value in node:
                yield from shares(value)

    for key, share in shares(config):
        if share and (share > 1 or abs(round(1 / share) - 1 / share) > 1e-6):
            yield f"serveConfigV2: {key} {share} does not divide 1"


def keys(config: Mapping) -> Iterator[str]:
    """Callers need a key, or the config says in words that they need none."""
    for application in config.get("applications", []):
        http = application.get("args", {}).get("http", {})
        if not http.get("keys_file") and http.get("open_to_all") is not True:
            yield "serveConfigV2: neither http.keys_file nor http.open_to_all: true"


def job(document: Mapping) -> Iterator[str]:
    """A RayJob."""
    spec = document["spec"]
    if "rayClusterSpec" not in spec and not spec.get("clusterSelector"):
        yield "neither rayClusterSpec nor clusterSelector"
        return
    inner = spec.get("rayClusterSpec", {})
    if inner:
        yield from cluster(inner, document["metadata"].get("annotations", {}))
    for name in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(name, 0) <= 0:
            yield f"no {name}: a job that hangs would hold its GPUs for ever"
    ends_itself = spec.get("shutdownAfterJobFinishes", False)
    rules = spec.get("deletionStrategy", {}).get("deletionRules", [])
    if rules and (ends_itself or spec.get("ttlSecondsAfterFinished")):
        yield "deletionRules and shutdownAfterJobFinishes exclude each other"
    if not rules and not ends_itself:
        yield "nothing deletes the cluster when the job has ended"
    yield from deletion(rules, inner.get("enableInTreeAutoscaling", False))
    if QUEUE_LABEL in document["metadata"].get("labels", {}):
        if not ends_itself:
            yield "Kueue takes only jobs with shutdownAfterJobFinishes"
        if inner.get("enableInTreeAutoscaling"):
            yield "Kueue takes only clusters that do not scale by themselves"
    if spec.get("suspend") and (not ends_itself or spec.get("clusterSelector")):
        yield "suspend needs shutdownAfterJobFinishes and no clusterSelector"
    if spec.get("submissionMode") == "InteractiveMode" and spec.get("backoffLimit", 0) > 0:
        yield "InteractiveMode has no backoffLimit"
    submitter = spec.get("submitterPodTemplate")
    if submitter is None and spec.get("submissionMode", "K8sJobMode") == "K8sJobMode":
        yield "no submitterPodTemplate: the operator's own is not of the restricted profile"
    elif submitter is not None:
        for text in pod(submitter["spec"]):
            yield f"submitter: {text}"
    if "env_vars" in (yaml.safe_load(spec.get("runtimeEnvYAML", "{}")) or {}):
        yield "env_vars in runtimeEnvYAML are shown by the jobs API; put them into the pods"


def deletion(rules: list[Mapping], scales: bool) -> Iterator[str]:
    """Rules of one condition must come in the order workers, cluster, self."""
    order = ["DeleteWorkers", "DeleteCluster", "DeleteSelf"]
    by_condition: dict[str, dict[str, int]] = {}
    for rule in rules:
        condition = rule.get("condition", {})
        states = [k for k in ("jobStatus", "jobDeploymentStatus") if k in condition]
        if len(states) != 1:
            yield "a deletion rule needs jobStatus or jobDeploymentStatus, and not both"
            continue
        if rule["policy"] == "DeleteWorkers" and scales:
            yield "DeleteWorkers is refused while the cluster scales by itself"
        of = by_condition.setdefault(f"{states[0]} {condition[states[0]]}", {})
        if rule["policy"] in of:
            yield f"two rules {rule['policy']} for {states[0]} {condition[states[0]]}"
        of[rule["policy"]] = condition.get("ttlSeconds", 0)
    for condition, seconds in by_condition.items():
        times = [seconds[policy] for policy in order if policy in seconds]
        if times != sorted(times):
            yield f"ttlSeconds of {condition} must rise from workers to cluster to self"


# --- pods -----------------------------------------------------------------------------------------


def pod(spec: Mapping, claims: Sequence[str] = ()) -> Iterator[str]:
    """Any pod: the restricted profile, named images, no secrets in the open.

    `claims` are the names of volumes that the pod's controller adds.
    """
    context = spec.get("securityContext", {})
    if not context.get("runAsNonRoot") or not context.get("runAsUser"):
        yield "the pod must run as a user that is not root, by number"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "the pod has no seccomp profile RuntimeDefault"
    if "automountServiceAccountToken" not in spec:
        yield "automountServiceAccountToken is left to chance"
    volumes = {v["name"]: v for v in spec.get("volumes", [])}
    if any("hostPath" in v for v in volumes.values()):
        yield "a host path; the restricted profile forbids it"
    for name, volume in volumes.items():
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"emptyDir {name} has no sizeLimit"
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        name = container["name"]
        yield from restricted(name, container.get("securityContext", {}))
        image = container.get("image", "")
        if not re.search(r"@sha256:[0-9a-f]{64}$|:[^:/]+$", image) or image.endswith(":latest"):
            yield f"{name}: image {image!r} has neither version nor digest"
        resources = container.get("resources", {})
        if not {"cpu", "memory"} <= set(resources.get("limits", {})):
            yield f"{name}: no limits of cpu and memory"
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in (*volumes, *claims):
                yield f"{name}: mounts {mount['name']}, which is no volume of the pod"
        for variable in container.get("env", []):
            if _SECRET.search(variable["name"].upper()) and "value" in variable:
                yield f"{name}: {variable['name']} stands in the open; use a Secret"


def stateful_set(document: Mapping) -> Iterator[str]:
    """A StatefulSet, such as that of Redis."""
    spec = document["spec"]
    claims = [c["metadata"]["name"] for c in spec.get("volumeClaimTemplates", [])]
    return pod(spec["template"]["spec"], claims)


def restricted(name: str, context: Mapping) -> Iterator[str]:
    """A container's security context."""
    wanted = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }
    for key, value in wanted.items():
        if context.get(key) is not value:
            yield f"{name}: securityContext.{key} must be {str(value).lower()}"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{name}: capabilities must be dropped, all of them, and none added"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield f"{name}: no seccomp profile RuntimeDefault"


def disruption(document: Mapping) -> Iterator[str]:
    """A budget over Ray's pods, which have no scale subresource."""
    if not isinstance(document["spec"].get("minAvailable"), int):
        yield "only a plain number as minAvailable works for Ray's pods"


def ray_container(spec: Mapping) -> Mapping:
    """The Ray container of a group: always the first."""
    return spec["template"]["spec"]["containers"][0]


def limits_of(spec: Mapping) -> Mapping:
    """Resource limits of a group's Ray container."""
    return ray_container(spec).get("resources", {}).get("limits", {})


def num_gpus(spec: Mapping) -> int:
    """GPUs, or slices of them, of a group's pod."""
    return sum(int(n) for k, n in limits_of(spec).items() if k.endswith("/gpu") or "/mig-" in k)


def size(quantity: str) -> float:
    """Bytes of a Kubernetes quantity such as 8Gi."""
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", str(quantity)).groups()
    return float(number) * _BYTES[unit]


def main() -> None:
    """Lint the files named, or the standard input."""
    texts = [Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]] or [sys.stdin.read()]
    found = [f for text in texts for f in findings([d for d in yaml.safe_load_all(text) if d])]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
