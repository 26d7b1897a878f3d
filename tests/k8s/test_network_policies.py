"""The network policies, evaluated as Kubernetes does: who reaches whom on which port."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

import pytest
from k8s_objects import build, one

HOME = "hymotion"


@dataclass(frozen=True)
class Peer:
    """A pod, or with an address something outside of the cluster."""

    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    address: str = ""


RAY = {"ray.io/is-ray-node": "yes"}
HEAD = Peer(HOME, {**RAY, "ray.io/node-type": "head"})
WORKER = Peer(HOME, {**RAY, "ray.io/node-type": "worker"})
SUBMITTER = Peer(HOME, {"hymotion-use": "submit"})
REDIS = Peer(HOME, {"app.kubernetes.io/name": "hymotion-redis"})
STRANGER = Peer(HOME, {"app": "else"})
OUTSIDER = Peer("default")
INGRESS = Peer("ingress-nginx")
GATEWAY = Peer(HOME, {"gateway.networking.k8s.io/gateway-name": "hymotion"})
ISTIOD = Peer("istio-system")
CALLER = Peer(address="203.0.113.7")
PROMETHEUS = Peer("monitoring")
OPERATOR = Peer("kuberay-operator")
DNS = Peer("kube-system")
BUCKET = Peer(address="52.216.1.1")
METADATA = Peer(address="169.254.169.254")


def policies() -> list[dict[str, Any]]:
    objects = build("base/platform") + build("overlays/mixed/service")
    found = [d for d in objects if d["kind"] == "NetworkPolicy"]
    assert {d["metadata"]["namespace"] for d in found} == {HOME}
    return [d["spec"] for d in found]


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    there = selector.get("matchExpressions", [])
    assert all(set(e) == {"key", "operator"} and e["operator"] == "Exists" for e in there)
    equal = all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())
    return equal and all(e["key"] in labels for e in there)


def is_peer(rule: dict[str, Any], peer: Peer) -> bool:
    if "ipBlock" in rule:
        if not peer.address:
            return False
        address = ipaddress.ip_address(peer.address)
        block = rule["ipBlock"]
        barred = any(address in ipaddress.ip_network(n) for n in block.get("except", []))
        return address in ipaddress.ip_network(block["cidr"]) and not barred
    if peer.address:
        return False
    if "namespaceSelector" in rule:
        name = {"kubernetes.io/metadata.name": peer.namespace}
        in_namespace = matches(rule["namespaceSelector"], name)
    else:
        in_namespace = peer.namespace == HOME
    return in_namespace and matches(rule.get("podSelector", {}), peer.labels)


def lets(direction: str, pod: Peer, other: Peer, port: int, protocol: str) -> bool:
    """Whether the policies on `pod` let traffic in from, or out to, `other`."""
    if pod.namespace != HOME:
        return True
    side, key = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}[direction]
    here = [p for p in policies() if direction in p["policyTypes"]]
    on_pod = [p for p in here if matches(p["podSelector"], pod.labels)]
    for policy in on_pod:
        for rule in policy.get(side, []):
            ports = rule.get("ports")
            open_port = ports is None or any(
                p["port"] == port and p["protocol"] == protocol for p in ports
            )
            to_all = not rule.get(key)
            if open_port and (to_all or any(is_peer(peer, other) for peer in rule[key])):
                return True
    return not on_pod


def reaches(source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    out = lets("Egress", source, target, port, protocol)
    return out and lets("Ingress", target, source, port, protocol)


@pytest.mark.parametrize("port", [22, 6379, 8000, 8080, 8265, 10001, 44217, 52365, 30000])
def test_nobody_else_reaches_ray(port: int) -> None:
    for stranger in (OUTSIDER, STRANGER):
        for target in (HEAD, WORKER):
            assert not reaches(stranger, target, port)


def test_ray_nodes_reach_each_other_on_every_port() -> None:
    for port in (6379, 8265, 10002, 19999, 52365):
        assert reaches(WORKER, HEAD, port)
        assert reaches(HEAD, WORKER, port)
        assert reaches(WORKER, WORKER, port)


@pytest.mark.parametrize(
    ("peer", "ports"),
    [
        (INGRESS, {8000}),
        (PROMETHEUS, {8080, 44217, 44227}),
        (OPERATOR, {8000, 8265, 52365}),
    ],
)
def test_helpers_reach_their_own_ports_only(peer: Peer, ports: set[int]) -> None:
    for port in (6379, 8000, 8080, 8265, 10001, 44217, 44227, 52365):
        assert reaches(peer, HEAD, port) == (port in ports)


def test_a_gateway_of_this_namespace_leads_to_the_endpoint_and_nowhere_else() -> None:
    for port in (80, 443):
        assert reaches(CALLER, GATEWAY, port)
    assert not reaches(CALLER, GATEWAY, 15000)
    for port in (6379, 8000, 8080, 8265, 10001):
        assert reaches(GATEWAY, WORKER, port) == (port == 8000)
    assert reaches(GATEWAY, ISTIOD, 15012)
    assert reaches(GATEWAY, DNS, 53, "UDP")
    assert not reaches(GATEWAY, REDIS, 6379)
    assert not reaches(CALLER, WORKER, 8000)
    assert not lets("Egress", GATEWAY, BUCKET, 443, "TCP")


def test_a_submitter_reaches_the_jobs_api_of_the_head_only() -> None:
    assert reaches(SUBMITTER, HEAD, 8265)
    assert not reaches(SUBMITTER, HEAD, 6379)
    assert not reaches(SUBMITTER, WORKER, 8265)
    assert not lets("Egress", SUBMITTER, BUCKET, 443, "TCP")


def test_only_heads_reach_redis() -> None:
    assert reaches(HEAD, REDIS, 6379)
    for other in (WORKER, STRANGER, OUTSIDER, SUBMITTER):
        assert not reaches(other, REDIS, 6379)
    assert not lets("Egress", REDIS, BUCKET, 443, "TCP")


def test_pods_reach_names_and_object_storage_and_no_credentials_of_the_node() -> None:
    for pod in (HEAD, WORKER):
        assert reaches(pod, DNS, 53, "UDP")
        assert lets("Egress", pod, BUCKET, 443, "TCP")
        assert not lets("Egress", pod, BUCKET, 25, "TCP")
        for port in (80, 443):
            assert not lets("Egress", pod, METADATA, port, "TCP")
    assert lets("Egress", HEAD, Peer(address="10.0.0.1"), 6443, "TCP")
    assert not lets("Egress", WORKER, Peer(address="10.0.0.1"), 6443, "TCP")


def test_the_labels_that_policies_select_by_are_on_the_pods() -> None:
    job = one(build("overlays/mixed/render"), "RayJob")
    labels = job["spec"]["submitterPodTemplate"]["metadata"]["labels"]
    assert labels["hymotion-use"] == SUBMITTER.labels["hymotion-use"]
    redis = one(build("overlays/mixed/service"), "StatefulSet")
    assert redis["spec"]["template"]["metadata"]["labels"].items() >= REDIS.labels.items()
