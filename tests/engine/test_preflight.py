"""A job that nodes have no memory for is refused with the numbers, before it is killed for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hymotion_ray.config.render import ResourceConfig
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.mishaps import Mishaps
from hymotion_ray.engine.nodes import Node
from hymotion_ray.engine.piece import Piece
from hymotion_ray.engine.render.placement import Placement, place
from hymotion_ray.engine.render.preflight import require_memory, sampler_bytes
from hymotion_ray.errors import ClusterError
from hymotion_ray.formats.models.weight_count import count_weights

GIB = 2**30
QWEN, FULL = 8_310_000_000, 1_042_878_811


def cpu_node(memory_gib: float) -> Node:
    memory = {"memory": memory_gib * GIB}
    return Node(node_id="n", num_cpus=4, num_gpus=0, resources=memory, kind="")


def placed(num_samplers: int | None, *, encoder_is_large: bool) -> Placement:
    info = ClusterInfo(num_cpus=4, total_cpus=4, num_gpus=0, num_nodes=1, started_here=True)
    wanted = ResourceConfig(num_samplers=num_samplers)
    return place(wanted, info, [cpu_node(8)], encoder_is_large=encoder_is_large)


def test_a_host_of_8_gb_is_too_small_for_the_released_encoder() -> None:
    with pytest.raises(ClusterError, match=r"31\.5 GiB of memory on CPU.*5\.0 GiB free.*tiny"):
        require_memory(
            placed(1, encoder_is_large=True),
            [cpu_node(5)],
            encoder_weights=QWEN,
            network_weights=FULL,
        )


def test_samplers_that_do_not_fit_are_counted() -> None:
    four = placed(4, encoder_is_large=False)
    with pytest.raises(ClusterError, match=r"4 samplers take 4\.4 GiB .* pass --samplers 2"):
        require_memory(four, [cpu_node(10)], encoder_weights=0, network_weights=FULL)
    with pytest.raises(ClusterError, match="use a larger node"):
        require_memory(four, [cpu_node(2)], encoder_weights=0, network_weights=FULL)
    require_memory(four, [cpu_node(20)], encoder_weights=0, network_weights=FULL)
    require_memory(four, [cpu_node(4)], encoder_weights=0, network_weights=10_000_000)


def test_a_job_without_a_number_starts_as_many_samplers_as_fit() -> None:
    info = ClusterInfo(num_cpus=8, total_cpus=11, num_gpus=0, num_nodes=1, started_here=True)
    for memory, expected in ((2, 3), (100, 1), (0.1, 1)):
        node = Node(
            node_id="n", num_cpus=11, num_gpus=0, resources={"memory": memory * GIB}, kind=""
        )
        weights = 10_000_000 if memory < 100 else 20_000_000_000
        placement = place(
            ResourceConfig(),
            info,
            [node],
            encoder_is_large=False,
            sampler_bytes=sampler_bytes(weights),
        )
        assert placement.samplers([node]) == (expected, expected)


def test_nodes_that_do_not_say_are_not_refused() -> None:
    silent = Node(node_id="n", num_cpus=4, num_gpus=0, resources={}, kind="")
    require_memory(
        placed(4, encoder_is_large=True), [silent], encoder_weights=QWEN, network_weights=FULL
    )


def test_weights_are_counted_from_the_headers(tmp_path: Path) -> None:
    save_file(
        {"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.bfloat16)},
        tmp_path / "1.safetensors",
    )
    save_file({"c": torch.zeros(2)}, tmp_path / "2.safetensors")
    assert count_weights(tmp_path) == 24
    assert count_weights(tmp_path / "none") == 0


def test_a_node_that_goes_away_takes_its_blame_with_it() -> None:
    mishaps, piece = Mishaps(), Piece(chunk=None)  # type: ignore[arg-type]
    for _ in range(5):  # five preemptions, each seen first as a dead process
        piece.num_kills += 1
        mishaps.died(with_node=False)
        mishaps.blame(0.0, "gone", piece)
        mishaps.forgive(1.0, {"other"})
    assert piece.num_kills == 0
    assert mishaps.counts() == {"killed": 0, "hung": 0, "lost_with_node": 5}
    piece.num_kills += 1
    mishaps.died(with_node=False)
    mishaps.blame(0.0, "other", piece)
    mishaps.forgive(100.0, {"other"})
    mishaps.forgive(101.0, set())
    assert piece.num_kills == 1, "a death on a node that lived on is the item's own"
