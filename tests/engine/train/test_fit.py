import json
from pathlib import Path

import pytest
import torch

from hymotion_ray.config.parallel import ParallelConfig, TrainAttention
from hymotion_ray.config.releases import released_network
from hymotion_ray.engine.train.block_calls import prepare_blocks
from hymotion_ray.engine.train.fit import fit, most_rows, pass_bytes
from hymotion_ray.engine.train.held_bytes import saved_bytes
from hymotion_ray.engine.train.precision import Arithmetic, attention_kernels
from hymotion_ray.planning.memory import Memory

from .rank_checks import CPU, NETWORK, make_batch, make_network, start, step

FULL = released_network("1.0")
SWEEP = Path(__file__).parents[3] / "benchmarks/results/memory-h200-2026-12-01.json"
A10_BYTES = 22 * 2**30
"""What a 24 GB card has for use."""


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize(("attention", "where"), [("dense", torch.device("cuda")), ("auto", CPU)])
def test_a_pass_without_content_keeps_what_a_real_one_keeps(
    recomputed: bool, attention: TrainAttention, where: torch.device
) -> None:
    config = ParallelConfig(gradient_checkpointing=recomputed, attention=attention)
    network = make_network()
    prepare_blocks(network, config, where)
    module = Arithmetic(network, "float32", CPU, attention_kernels(where))
    inputs, _ = make_batch(0)
    rows, num_frames = inputs[0].shape[:2]
    real = saved_bytes(lambda: module(*inputs), network)
    computed = pass_bytes(
        NETWORK, config, rows=rows, num_frames=num_frames, num_tokens=inputs[1].shape[1]
    )
    assert computed == real


def test_band_attention_keeps_no_scores() -> None:
    def kept(attention: TrainAttention, num_frames: int) -> int:
        config = ParallelConfig(attention=attention)
        return pass_bytes(NETWORK, config, rows=1, num_frames=num_frames, num_tokens=8)

    few, many = kept("auto", 80), kept("auto", 320)
    assert many < 4 * few
    assert kept("dense", 320) - many > 10 * (kept("dense", 80) - few)


@pytest.mark.parametrize("recomputed", [False, True])
def test_one_row_more_than_the_most_does_not_fit(recomputed: bool) -> None:
    config = ParallelConfig(gradient_checkpointing=recomputed)
    sizes = {"num_frames": 20, "num_tokens": 5}

    def total(rows: int) -> int:
        return fit(NETWORK, config, rows=rows, **sizes).total

    # So many keep more than the least peak. A block of a row is rounded to bytes.
    room = total(500) + 1000
    rows = most_rows(NETWORK, config, room, **sizes)
    assert total(rows) <= room < total(rows + 1)
    assert most_rows(NETWORK, config, total(1) - 1, **sizes) == 0


def test_what_is_computed_of_weights_and_state_is_what_a_rank_holds() -> None:
    parallel = start(ParallelConfig())
    step(parallel, 0)
    held = parallel.held()
    computed = fit(NETWORK, ParallelConfig(), rows=1, num_frames=20, num_tokens=5)
    assert computed.weights == held.parameters
    assert computed.gradients == held.gradients
    mean = held.parameters  # of all weights, which the loop holds and not the optimizer
    assert computed.optimizer - mean == pytest.approx(held.optimizer, rel=1e-2)  # a count each


def test_splitting_divides_what_it_says() -> None:
    def of(strategy: str) -> Memory:
        config = ParallelConfig(strategy=strategy)  # type: ignore[arg-type]
        return fit(NETWORK, config, rows=1, num_frames=20, num_tokens=5, num_ranks=4)

    ddp, zero1, zero2, zero3 = (of(name) for name in ("ddp", "zero1", "zero2", "zero3"))
    moments = 2 * ddp.gradients
    assert ddp.optimizer - zero1.optimizer == pytest.approx(0.75 * moments, rel=1e-5)
    assert zero1.gradients == ddp.gradients
    assert zero2.gradients == zero3.gradients == ddp.gradients // 4
    assert zero3.total < zero2.total < ddp.total


@pytest.mark.slow
def test_adapters_of_the_full_size_fit_a_card_of_24_gb_and_all_weights_do_not() -> None:
    lora = ParallelConfig(precision="bfloat16", lora_rank=16)
    assert fit(FULL, lora, rows=8).total < A10_BYTES
    assert fit(FULL, ParallelConfig(precision="bfloat16"), rows=1).total > A10_BYTES


@pytest.mark.slow
def test_an_h200_takes_what_is_computed() -> None:
    errors = []
    for record in json.loads(SWEEP.read_text())["records"]:
        if record["kind"] == "training" and "lora_rank" not in record["inputs"]:
            given = dict(record["inputs"])
            network = released_network(given.pop("model"))
            sizes = {name: given.pop(name) for name in ("rows", "num_frames", "num_tokens")}
            computed = fit(network, ParallelConfig(precision="bfloat16", **given), **sizes)
            measured = record["measured"]
            own = measured["total"] - measured["context"]
            errors.append(abs((computed.total - computed.context) / own - 1))
    assert len(errors) == 8
    assert max(errors) < 0.05
