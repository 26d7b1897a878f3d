"""Scaling decisions for each manifest, by Ray's own autoscaler code: which pools start for what."""

from __future__ import annotations

import copy

import pytest
from k8s_autoscaler import decide, replicas
from k8s_objects import ENTRIES, build, lint, one, ray_cluster
from ray.core.generated.autoscaler_pb2 import ResourceRequest
from ray_autoscaler import demand

SERVICES = [entry for entry in ENTRIES if entry.endswith("/service")]
A100 = {"ray.io/accelerator-type": "A100"}
A10 = {"ray.io/accelerator-type": "in(A10,A10G)"}


def kinds(document: dict) -> dict[str, int]:
    """Groups and how many GPUs a pod of each has."""
    return {g["groupName"]: lint.num_gpus(g) for g in ray_cluster(document)["workerGroupSpecs"]}


def service(overlay: str) -> dict:
    return one(build(f"overlays/{overlay}/service"), "RayService")


def sampler(document: dict, pool: str) -> ResourceRequest:
    return replicas(document)[f"Sampler-{pool}"][0]


@pytest.mark.parametrize("entry", SERVICES)
def test_an_idle_endpoint_holds_no_gpu_by_its_pools_alone(entry: str) -> None:
    document = one(build(entry), "RayService")
    launched, _ = decide(document, [])
    assert launched == {"cpu": 1}


@pytest.mark.parametrize("entry", SERVICES)
def test_cpu_work_never_starts_a_gpu_pod(entry: str) -> None:
    document = one(build(entry), "RayService")
    most = {g["groupName"]: g["maxReplicas"] for g in ray_cluster(document)["workerGroupSpecs"]}
    launched, _ = decide(document, [demand({"CPU": 1})] * 40)
    assert set(launched) == {"cpu"}
    # Also past the last CPU pod: the rest waits, although GPU pods have CPUs to spare.
    many = int(most["cpu"] * 8 + 5)
    launched, _ = decide(document, [demand({"CPU": 1}, [{"hymotion-pool": "cpu"}])] * many)
    assert launched == {"cpu": most["cpu"]}


@pytest.mark.parametrize("entry", SERVICES)
def test_all_replicas_of_a_config_find_a_place(entry: str) -> None:
    """All deployments at their largest fit the overlay's groups at theirs."""
    document = one(build(entry), "RayService")
    asked = replicas(document)
    assert {"Api", "Encoder"} < set(asked)
    demands = [request for request, _, most in asked.values() for _ in range(most)]
    launched, infeasible = decide(document, demands)
    assert infeasible == 0
    needed = sum(request.resources_bundle.get("GPU", 0) for request in demands)
    gpus = kinds(document)
    assert sum(count * gpus[name] for name, count in launched.items()) >= needed


@pytest.mark.parametrize("entry", SERVICES)
def test_every_deployment_scales_from_nothing_to_its_kind_of_node(entry: str) -> None:
    document = one(build(entry), "RayService")
    for name, (request, _, _) in replicas(document).items():
        launched, infeasible = decide(document, [request])
        assert infeasible == 0
        started = {group for group in launched if kinds(document)[group]}
        assert bool(started) == bool(request.resources_bundle.get("GPU")), (name, launched)


def test_the_first_choice_is_an_a100_and_the_second_an_a10() -> None:
    document = service("mixed")
    replica = sampler(document, "a100")
    assert decide(document, [replica])[0] == {"cpu": 1, "a100": 1}
    assert decide(document, [replica] * 8)[0] == {"cpu": 1, "a100": 4}  # two a card
    launched, infeasible = decide(document, [replica] * 11)
    assert infeasible == 0
    assert launched["a100"] == 4
    assert launched.get("a10", 0) + launched.get("a10-spot", 0) == 2


def test_spot_nodes_come_first_and_others_after_the_last_of_them() -> None:
    document = service("mixed")
    replica = sampler(document, "a10")
    assert decide(document, [replica] * 8)[0] == {"cpu": 1, "a10-spot": 8}
    assert decide(document, [replica] * 11)[0] == {"cpu": 1, "a10-spot": 8, "a10": 3}
    # 8 + 8 are all that the two pools have; the A100 is not for this pool.
    launched, _ = decide(document, [replica] * 20)
    assert launched == {"cpu": 1, "a10-spot": 8, "a10": 8}


def test_encoder_and_samplers_share_an_a100() -> None:
    document = service("a100")
    both = [replicas(document)["Encoder"][0], sampler(document, "a100")]
    assert decide(document, both)[0] == {"cpu": 1, "a100": 1}


def test_a_selector_needs_the_labels_of_the_group() -> None:
    """Why every GPU group says its labels: the node's own are not known before it exists."""
    document = copy.deepcopy(service("mixed"))
    for group in ray_cluster(document)["workerGroupSpecs"]:
        group.pop("labels")
    launched, infeasible = decide(document, [demand({"GPU": 1}, [A100])])
    assert launched == {"cpu": 1}
    assert infeasible == 1


def test_an_a10_is_one_whatever_the_cloud_calls_it() -> None:
    document = service("a10")
    launched, infeasible = decide(document, [demand({"GPU": 1}, [A10])])
    assert (launched, infeasible) == ({"cpu": 1, "a10": 1}, 0)
    assert decide(document, [demand({"GPU": 1}, [A100])])[1] == 1


@pytest.mark.parametrize("overlay", ["a10", "a100", "mixed"])
def test_a_render_starts_with_its_gpus_and_sampler_slots(overlay: str) -> None:
    """The engine counts slots when it starts, so that some pods must stand by then."""
    document = one(build(f"overlays/{overlay}/render"), "RayJob")
    launched, _ = decide(document, [])
    groups = {g["groupName"]: g for g in ray_cluster(document)["workerGroupSpecs"]}
    started = {name: count for name, count in launched.items() if lint.num_gpus(groups[name])}
    assert launched == {name: g["minReplicas"] for name, g in groups.items() if g["minReplicas"]}
    assert sum(started.values()) >= 4
    slots = sum(n * int(groups[name]["resources"]["sampler_slot"]) for name, n in started.items())
    # What the engine asks for: one slot and the smallest share that a slot stands for.
    share = min(1 / int(groups[name]["resources"]["sampler_slot"]) for name in started)
    process = demand({"CPU": 1, "GPU": share, "sampler_slot": 1})
    assert decide(document, [process] * slots) == (launched, 0)


@pytest.mark.parametrize("overlay", ["dev", "a10", "a100", "mixed"])
def test_an_ingest_starts_no_gpu_pod(overlay: str) -> None:
    document = one(build(f"overlays/{overlay}/ingest"), "RayJob")
    launched, _ = decide(document, [demand({"CPU": 1})] * 100)
    assert set(launched) == {"cpu"}


@pytest.mark.parametrize("overlay", ["a10", "a100", "mixed"])
def test_training_takes_pods_of_one_kind_all_at_once(overlay: str) -> None:
    """A queued job does not scale: replicas are what it gets, and its --workers must be as many."""
    job = one(build(f"overlays/{overlay}/train"), "RayJob")
    groups = [g for g in ray_cluster(job)["workerGroupSpecs"] if lint.num_gpus(g)]
    (used,) = [g for g in groups if g["replicas"]]
    assert used["minReplicas"] == used["replicas"] == used["maxReplicas"]
    assert f"--workers {used['replicas']}" in " ".join(job["spec"]["entrypoint"].split())
