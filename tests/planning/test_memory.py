"""Weights, memory and speed that are computed from shapes, against the real network and an H200."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from statistics import median

import pytest
import torch

from hymotion_ray.config import NetworkConfig
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.config.releases import released_network
from hymotion_ray.engine.train.fit import pass_bytes
from hymotion_ray.engine.train.lora import choose_trained, num_trained
from hymotion_ray.model import MotionMMDiT
from hymotion_ray.planning.catalogue import load_catalogue
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.memory import (
    Memory,
    encoder_memory,
    sampling_memory,
    text_row_bytes,
)
from hymotion_ray.planning.parameters import count_adapters, count_parameters, largest_block
from hymotion_ray.planning.speed import encoding_rate, sampling_rate
from hymotion_ray.planning.training_memory import reckoned_bytes, training_memory

FULL = released_network("1.0")
SMALL = {
    "feat_dim": 64, "num_layers": 6, "num_heads": 4, "ctxt_input_dim": 48, "vtxt_input_dim": 24,
}  # fmt: skip
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASURED = json.loads((BENCHMARKS / "results/h200-2026-12-01.json").read_text())
SWEEPS = sorted((BENCHMARKS / "results").glob("memory-h200-*.json"))
"""What `bench_memory.py` measured, the newest last."""


@pytest.mark.parametrize(
    "config",
    [
        FULL,
        released_network("lite"),
        NetworkConfig(**SMALL, insert_start_token=True, with_long_skip_connection=True),
        NetworkConfig(**SMALL, qkv_bias=False, refiner_num_layers=1, mlp_ratio=2.0),
    ],
)
def test_weights_and_text_rows_are_counted_as_the_network_has_them(config: NetworkConfig) -> None:
    with torch.device("meta"):
        network = MotionMMDiT(config, 360)
    assert count_parameters(config) == sum(p.numel() for p in network.parameters())
    assert text_row_bytes(config, 7, "float32") == network.text_row_bytes(7)


def test_peaks_and_times_of_the_sweep_that_was_fitted_are_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    fitting = importlib.import_module("fit_planning")
    document = json.loads(SWEEPS[-1].read_text())
    constants = fitted()
    assert SWEEPS[-1].name in constants.memory.source
    records = fitting._good(document, "sampling", "check")
    peaks = [abs(fitting._sampling_error(r, False, constants.memory)) for r in records]
    times = [abs(fitting._time_error(r, False, constants.speed)) for r in records]
    assert median(peaks) <= 0.10
    assert median(times) <= 0.15
    trained = fitting._good(document, "training", "check")
    assert median(abs(fitting._training_error(r, False, constants)) for r in trained) <= 0.05


@pytest.mark.parametrize(
    ("key", "rows", "seeds", "num_frames"),
    [
        ("bulk_64x1_clips_per_s", 64, 1, 150),
        ("bulk_16x4_clips_per_s", 64, 4, 150),
        ("long_clips_per_s", 32, 1, 360),
        ("one_clip_s", 1, 1, 150),
    ],
)
def test_h200_rates_are_met_within_a_tenth(
    key: str, rows: int, seeds: int, num_frames: int
) -> None:
    h200 = load_catalogue().gpu("H200")
    rate = sampling_rate(FULL, h200, rows=rows, num_frames=num_frames, num_tokens=36, seeds=seeds)
    assert (1 / rate if key == "one_clip_s" else rate) == pytest.approx(MEASURED[key], rel=0.1)


@pytest.mark.parametrize("rows", [4, 32])
def test_a_sampler_with_weights_in_host_memory_takes_what_was_measured(rows: int) -> None:
    layouts = json.loads((BENCHMARKS / "results/h200-2026-12-01-layouts.json").read_text())
    (record,) = [r for r in layouts["records"] if r["what"] == f"weights offloaded, {rows} rows"]
    found = sampling_memory(
        FULL, rows=rows, num_frames=150, num_tokens=36, num_steps=5, offload=True
    )
    assert found.weights == pytest.approx(record["weights_resident"], rel=0.01)
    assert 0.95 < (found.total - found.context) / record["peak_allocated"] < 1.2


def test_the_encoder_is_met() -> None:
    assert encoding_rate(load_catalogue().gpu("H200")) == pytest.approx(418, rel=0.01)


def test_more_of_anything_takes_more_memory() -> None:
    # Of one step: a window holds whole steps, so that larger ones may fill it less.
    base = {"rows": 64, "num_frames": 90, "num_tokens": 24, "window_bytes": 0}
    less = sampling_memory(FULL, **base).total
    for name in ("rows", "num_frames", "num_tokens"):
        assert sampling_memory(FULL, **{**base, name: 2 * base[name]}).total > less
    assert sampling_memory(FULL, **base, precision="float32").total > less
    assert sampling_memory(FULL, **base, guidance=False).total < less
    assert sampling_memory(FULL, **base, seeds=64).total < less


def test_adapters_and_blocks_are_counted_as_the_trainer_makes_them() -> None:
    config = NetworkConfig(**SMALL)
    switches = ParallelConfig(lora_rank=8)
    with torch.device("meta"):
        network = MotionMMDiT(config, 360)
        blocks = (*network.double_blocks, *network.single_blocks)
        assert largest_block(config) == max(num_trained(block)[1] for block in blocks)
        choose_trained(network, switches)
    trained, weights = num_trained(network)
    assert count_adapters(config, 8) == trained
    assert training_memory(config, switches, rows=1).weights == 4 * weights


def test_zero_splits_what_it_says() -> None:
    def of(rows: int = 1, **switches) -> Memory:
        return training_memory(FULL, ParallelConfig(**switches), rows=rows, num_ranks=4)

    whole, zero1, zero2, zero3 = (of(strategy=s) for s in ("ddp", "zero1", "zero2", "zero3"))
    moments = 8 * count_parameters(FULL)
    assert whole.optimizer - zero1.optimizer == pytest.approx(0.75 * moments)
    assert (zero1.gradients, zero1.weights) == (whole.gradients, whole.weights)
    assert zero2.gradients == whole.gradients // 4
    assert zero3.weights < whole.weights / 2 < zero2.weights
    again = of(rows=16, gradient_checkpointing=True)
    assert again.activations < of(rows=16).activations
    # With blocks computed again the pass keeps less than the peak that was seen all the same.
    assert again.activations == whole.gradients
    assert of(lora_rank=16).optimizer < whole.optimizer / 20


@pytest.mark.parametrize(
    "switches",
    [
        {"precision": "bfloat16"},
        {"precision": "bfloat16", "lora_rank": 16},
        {"precision": "float32"},
    ],
)
def test_what_a_pass_keeps_is_reckoned_as_the_trainer_counts_it(switches: dict) -> None:
    config = ParallelConfig(**switches, attention="dense")
    shape = {"rows": 2, "num_frames": 240, "num_tokens": 48}
    counted = pass_bytes(FULL, config, **shape)
    assert reckoned_bytes(FULL, config, **shape) == pytest.approx(counted, rel=0.1)


def test_a_quantised_encoder_is_smaller() -> None:
    sizes = [encoder_memory(p).encoder for p in ("bfloat16", "int8", "4bit")]
    assert sizes == sorted(sizes, reverse=True)
