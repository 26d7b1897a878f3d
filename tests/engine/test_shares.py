"""Encoder and samplers fit the cards they are given, and no GPU is asked for twice."""

from __future__ import annotations

import dataclasses

import pytest

from hymotion_ray.config.releases import released_network
from hymotion_ray.config.render import ResourceConfig
from hymotion_ray.config.text import TextPlacement
from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.device import SLOT
from hymotion_ray.engine.nodes import Node
from hymotion_ray.engine.pool import Pool, Step
from hymotion_ray.engine.render.placement import place
from hymotion_ray.engine.render.preflight import require_memory
from hymotion_ray.engine.render.shares import Shares, divide, encoder_bytes
from hymotion_ray.errors import ClusterError
from hymotion_ray.planning.memory import sampling_memory

GIB = 2**30
A10 = int(22.5 * GIB)  # what a card sold as 24 GB has
NETWORK = released_network("1.0")
BF16 = TextPlacement()


def cluster(num_gpus: float) -> ClusterInfo:
    return ClusterInfo(
        num_cpus=16, total_cpus=16, num_gpus=num_gpus, num_nodes=1, started_here=False
    )


def node(num_gpus: float, **resources: float) -> Node:
    return Node(node_id="n", num_cpus=16, num_gpus=num_gpus, resources=resources, kind="")


@pytest.mark.parametrize("size", [A10, 24 * GIB, 40 * GIB, 80 * GIB, 141 * GIB])
@pytest.mark.parametrize("number", [1, 4])
def test_both_fit_a_card_of_24_gb_and_more(size: int, number: int) -> None:
    shares = divide(NETWORK, BF16, "auto", [size] * number)
    sampler = sampling_memory(
        NETWORK, rows=shares.rows, num_frames=360, num_tokens=64, card_bytes=size
    ).total
    assert encoder_bytes(BF16) <= shares.encoder_gpus * size
    assert sampler <= shares.beside_gpus * size
    assert shares.encoder_gpus + shares.beside_gpus == pytest.approx(1.0)
    assert shares.rows == 64 if size >= 40 * GIB else shares.rows >= 4


def test_a_smaller_card_gives_the_encoder_one_of_its_own_or_the_cpus() -> None:
    assert divide(NETWORK, BF16, "auto", [18 * GIB] * 2).encoder_gpus == 1.0
    one = divide(NETWORK, BF16, "auto", [18 * GIB])
    assert (one.encoder_gpus, one.beside_gpus) == (0.0, 1.0)
    assert "beside a sampler on the one GPU of 18 GiB" in one.words
    assert divide(NETWORK, BF16, "auto", [15 * GIB] * 8).encoder_gpus == 0.0
    in_4bit = dataclasses.replace(BF16, precision="4bit")
    assert 0 < divide(NETWORK, in_4bit, "auto", [15 * GIB]).encoder_gpus < 1


@pytest.mark.parametrize("size", [18 * GIB, 20 * GIB, A10, 24 * GIB, 28 * GIB])
def test_with_many_cards_the_encoder_does_not_cramp_all_samplers(size: int) -> None:
    for precision in ("auto", "float32"):
        shares = divide(NETWORK, BF16, precision, [size] * 8)
        assert shares.rows >= 16
        assert shares.encoder_gpus == 1.0 or shares.encoder_gpus + shares.beside_gpus == 1.0


def test_a_large_card_of_many_is_shared() -> None:
    assert divide(NETWORK, BF16, "auto", [80 * GIB] * 8).encoder_gpus < 1


def test_the_smallest_card_of_a_mixed_pool_decides() -> None:
    assert divide(NETWORK, BF16, "auto", [80 * GIB, A10]) == divide(NETWORK, BF16, "auto", [A10])


@pytest.mark.parametrize("number", [1, 2, 8])
def test_the_shares_of_all_processes_fit_the_gpus(number: int) -> None:
    for size in (15 * GIB, 18 * GIB, A10, 80 * GIB):
        shares = divide(NETWORK, BF16, "auto", [size] * number)
        nodes = [node(number)]
        placement = place(
            ResourceConfig(), cluster(number), nodes, encoder_is_large=True, shares=shares
        )
        samplers = placement.samplers(nodes)[0]
        less, share = placement.beside or (0, 0.0)
        asked = placement.encoder_gpus + less * share
        asked += (samplers - less) * placement.sampler_gpus
        assert asked == pytest.approx(number if placement.encoder_gpus else samplers)
        assert samplers >= 1


def test_the_jobs_own_shares_come_first() -> None:
    own = ResourceConfig(encoder_gpus=0.4, sampler_gpus=0.6)
    shares = Shares(encoder_gpus=0.75, beside_gpus=0.25, rows=8, words="")
    placement = place(own, cluster(2), [node(2)], encoder_is_large=True, shares=shares)
    assert (placement.encoder_gpus, placement.sampler_gpus) == (0.4, 0.6)
    assert placement.beside is None


def test_a_node_with_one_slot_and_one_gpu_has_room_for_the_encoder() -> None:
    nodes = [node(1, **{SLOT: 1.0})]
    shares = divide(NETWORK, BF16, "auto", [A10])
    placement = place(ResourceConfig(), cluster(1), nodes, encoder_is_large=True, shares=shares)
    assert placement.encoder_gpus + placement.sampler_gpus <= 1.0
    unknown = place(ResourceConfig(), cluster(1), nodes, encoder_is_large=True, shares=None)
    assert unknown.encoder_gpus + unknown.sampler_gpus <= 1.0


def test_one_sampler_takes_the_lesser_share_and_the_others_whole_gpus() -> None:
    step = Step(name="sample", stages=(), size=lambda nodes: (3, 3), num_gpus=1.0, beside=(1, 0.25))
    pool = Pool(step, is_last=False)
    asked: list[float] = []
    for _ in range(3):
        share = pool.next_share()
        asked.append(share)
        pool.workers.append(type("Held", (), {"num_gpus": share})())  # type: ignore[arg-type]
    assert asked == [0.25, 1.0, 1.0]
    pool.workers.pop(0)
    assert pool.next_share() == 0.25


def test_groups_take_whole_nodes_first_and_the_encoder_beside_one_leader() -> None:
    """Three cards a node hold one pair each; the card left over is no half of a pair."""
    wanted, shares = ResourceConfig(), Shares(encoder_gpus=0.7, beside_gpus=0.3, rows=8, words="")
    two_nodes = [node(3), node(3)]
    found = place(wanted, cluster(6), two_nodes, encoder_is_large=True, shares=shares, group_size=2)
    assert found.samplers(two_nodes)[0] == 2
    assert found.sampler_gpus == 1.0
    assert found.beside == (1, 0.3)
    alone = [node(1), node(1)]
    assert found.samplers(alone)[0] == 1, "a pair over two nodes is better than none"


def test_a_pair_finds_no_place_beside_an_encoder_on_the_second_of_two_cards() -> None:
    shares = Shares(encoder_gpus=1.0, beside_gpus=1.0, rows=8, words="")
    found = place(
        ResourceConfig(), cluster(2), [node(2)],
        encoder_is_large=True, shares=shares, group_size=2,
    )  # fmt: skip
    with pytest.raises(ClusterError, match=r"takes 2 GPUs beside the text encoder.*have 2;"):
        require_memory(found, [node(2)], encoder_weights=0, network_weights=0)
