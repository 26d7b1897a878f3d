"""Every switch on two gloo ranks against the plain run of one process."""

import math
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor

from hymotion_ray.config.parallel import ParallelConfig

from . import rank_checks

# One start of processes for all tests: the first one waits for them, long on a busy machine.
pytestmark = pytest.mark.timeout(900)
NUM_RANKS = 2
Results = dict[str, Any]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    """What each rank found; one group for the whole module."""
    return run_ranks(tmp_path_factory.mktemp("ranks"), NUM_RANKS)


def run_ranks(folder: Path, num_ranks: int, *names: str) -> list[Results]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_checks.work, (num_ranks, port, str(folder), names), num_ranks)
    parts = [
        torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(num_ranks)
    ]
    for rank, part in enumerate(parts):
        part["lost"] = (folder / f"lost-{rank}").read_text()
    return parts


@pytest.fixture(scope="module")
def plain() -> Results:
    """The same steps in one process with the defaults."""
    return rank_checks.train(ParallelConfig())


def off(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Norm of the difference over the norm, all tensors together."""
    assert ours.keys() == theirs.keys()
    difference = sum(float((ours[name] - theirs[name]).square().sum()) for name in theirs)
    return (difference / sum(float(part.square().sum()) for part in theirs.values())) ** 0.5


def moved(state: dict[str, Tensor], plain: Results) -> float:
    """How far a run's weights are from the plain run's, over how far those moved."""
    start = rank_checks.make_network().state_dict()
    theirs = {name: plain["state"][name] - start[name] for name in start}
    return off({name: state[name] - start[name] for name in start}, theirs)


@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2", "zero3", "recomputed"])
def test_exact_switches_train_as_one_process_does(
    ranks: list[Results], plain: Results, name: str
) -> None:
    ours = ranks[0][name]
    assert off(ours["gradient"], plain["gradient"]) < 1e-5
    assert ours["norms"] == pytest.approx(plain["norms"], rel=1e-4)
    assert moved(ours["state"], plain) < 0.02  # Adam turns last bits of tiny gradients into steps


@pytest.mark.parametrize(
    ("name", "gradient", "weights"),
    [
        ("fp16", 1e-3, 0.1),
        ("zero3 fp16", 1e-3, 0.1),
        ("float16", 5e-3, 0.2),
        ("bfloat16", 3e-2, 0.4),
    ],
)
def test_rounded_switches_stay_near_the_plain_run(
    ranks: list[Results], plain: Results, name: str, gradient: float, weights: float
) -> None:
    ours = ranks[0][name]
    first = ours["gradient"]
    if name == "float16":  # still scaled
        first = {key: part / 65536.0 for key, part in first.items()}
    assert 1e-6 < off(first, plain["gradient"]) < gradient
    assert moved(ours["state"], plain) < weights


def test_each_rank_holds_its_part(ranks: list[Results]) -> None:
    assert_parts(ranks)


def assert_parts(ranks: list[Results]) -> None:
    most = (1 + 0.05) / len(ranks)
    for rank in ranks:
        held = rank["spread"]
        assert held["ddp"]["optimizer"] > 0.99
        for name in ("zero1", "zero2", "zero3"):
            assert held[name]["optimizer"] <= most
        for name in ("zero2", "zero3"):
            assert held[name]["parameters"] <= most
            assert held[name]["gradients"] <= most
        assert held["zero2"]["mid_pass"] > 0.99
        # Its part, and the few weights outside of blocks, here a tenth of all.
        assert held["zero3"]["mid_pass"] < most + 0.15


def test_hooks_send_less(ranks: list[Results]) -> None:
    sent = ranks[0]["sent"]
    assert sent["none"] == pytest.approx(ranks[0]["spread"]["ddp"]["expected"], rel=0.02)
    assert sent["fp16"] < 0.52 * sent["none"]
    assert sent["powersgd"] < 0.1 * sent["none"]
    for name in ("zero1", "zero2", "zero3"):
        assert sent["none"] < ranks[0]["spread"][name]["sent"]
        assert ranks[0]["spread"][name]["sent"] < 1.02 * ranks[0]["spread"][name]["expected"]


def test_powersgd_learns_as_the_plain_run_does(ranks: list[Results]) -> None:
    plain, ours = ranks[0]["fit"], ranks[0]["fit powersgd"]
    assert ours[:5] == pytest.approx(plain[:5], rel=1e-4)  # before it begins
    assert ours[-1] < plain[0] / 2
    assert sum(ours) < 1.15 * sum(plain)


def test_powersgd_forgets_a_gradient_that_was_not_finite(ranks: list[Results]) -> None:
    norms = ranks[0]["not finite"]
    assert [math.isfinite(norm) for norm in norms] == [True, True, True, True, False, True]


def test_smaller_buckets_are_more_messages(ranks: list[Results]) -> None:
    assert ranks[0]["messages"][1] > ranks[0]["messages"][25] >= 1


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_two_halves_equal_the_whole_batch(
    ranks: list[Results], plain: Results, strategy: str
) -> None:
    ours = ranks[0]["accumulation"][strategy]
    assert off(ours["gradient"], plain["gradient"]) < 1e-5
    if strategy == "ddp":
        assert ours["sent"] < 0.01 * ranks[0]["sent"]["none"]


@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks: list[Results], strategy: str) -> None:
    for rank in ranks:
        found = rank["overflow"][strategy]
        assert not found["taken"]
        assert found["taken_next"]
    assert ranks[0]["overflow"][strategy]["same"]
    assert ranks[0]["overflow"][strategy]["scale"] == 2.0**13


def test_resuming_gives_the_same_bits_on_as_many_ranks(ranks: list[Results]) -> None:
    for name in ("alike", "float16"):
        found = ranks[0]["resume"][name]
        for key, tensor in found["unbroken"].items():
            assert torch.equal(found["resumed"][key], tensor)
        assert found["scales"][0] == found["scales"][1]
    assert ranks[0]["resume"]["float16"]["scales"][0]["scale"] == 65536.0


def test_state_loads_under_another_strategy_and_rank_count(ranks: list[Results]) -> None:
    found = ranks[0]["resume"]["other"]
    assert off(found["resumed"], found["unbroken"]) < 1e-4
    alone = rank_checks.start(ParallelConfig(), seed=9)
    alone.load_full_state(found["saved"][0])
    alone.load_optimizer_state(found["saved"][1])
    rank_checks.step(alone, rank_checks.NUM_STEPS)
    assert off(alone.full_state(), found["unbroken"]) < 1e-4


def test_tuning_measures_hooks_buckets_and_rows_alike_on_all_ranks(ranks: list[Results]) -> None:
    found = ranks[0]["tune"]
    assert found == ranks[1]["tune"]
    assert found.is_counted
    assert [(t.comm_hook, t.bucket_mb, t.rows) for t in found.trials] == [
        (hook, bucket, rows)
        for hook in ("none", "fp16", "powersgd")
        for bucket in (1, 25)
        for rows in (1, 2)
    ]
    assert found.pick.comm_hook != "powersgd"
    sent = {t.comm_hook: t.sent_bytes for t in found.trials}
    assert sent["powersgd"] < 0.2 * sent["fp16"] < 0.11 * sent["none"]


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_a_run_in_two_parts_ends_in_the_bits_of_an_unbroken_one(
    ranks: list[Results], strategy: str
) -> None:
    found = ranks[0]["runs"][strategy]
    assert found["whole"].keys() == found["parts"].keys()
    for name, tensor in found["whole"].items():
        assert torch.equal(found["parts"][name], tensor), name


def test_a_sharded_run_leaves_the_checkpoint_of_an_averaged_one(ranks: list[Results]) -> None:
    ours, theirs = (ranks[0]["runs"][name]["whole"] for name in ("zero3", "ddp"))
    assert ours.keys() == theirs.keys()
    weights = {name: part for name, part in theirs.items() if name.startswith("raw/")}
    assert off({name: ours[name] for name in weights}, weights) < 1e-6


def test_bf16_on_gloo_is_refused_with_advice(ranks: list[Results]) -> None:
    for rank in ranks:
        for words in rank["bf16"]:
            assert words.startswith("ConfigError")
            assert "nccl" in words
            assert "fp16" in words


def test_every_rank_refuses_another_network_s_weights(ranks: list[Results]) -> None:
    for rank in ranks:
        assert rank["another network"].startswith("CheckpointError")
        assert "shape" in rank["another network"]


def test_a_rank_that_raises_is_named_on_every_rank(ranks: list[Results]) -> None:
    for rank in ranks:
        assert rank["lost"].startswith("ClusterError: rank 1 of 2")
        assert "ValueError: the card is on fire" in rank["lost"]


@pytest.mark.slow
def test_four_ranks_train_as_one_process_does(tmp_path: Path, plain: Results) -> None:
    names = ("ddp", "zero1", "zero2", "zero3")
    ranks = run_ranks(tmp_path, 4, *names, "spread")
    for name in names:
        assert off(ranks[0][name]["gradient"], plain["gradient"]) < 1e-5
        assert moved(ranks[0][name]["state"], plain) < 0.02
    assert_parts(ranks)
    for rank in ranks:
        assert rank["lost"].startswith("ClusterError: rank 3 of 4")


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_after_the_time_out(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_checks.hang, (port, str(tmp_path)), NUM_RANKS)
    words = (tmp_path / "hung-0").read_text()
    assert words.startswith("ClusterError: rank 1 of 2 died or hangs without a word")
