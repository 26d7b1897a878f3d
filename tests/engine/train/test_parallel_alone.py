"""Switches that one process has: arithmetic, recomputing, compiling, resuming, parts."""

import copy
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.held_bytes import saved_bytes
from hymotion_ray.engine.train.parallel import parallelise
from hymotion_ray.errors import CheckpointError, ConfigError

from . import rank_checks
from .rank_checks import CPU, NUM_STEPS, start, step


def trained(config: ParallelConfig) -> dict[str, Tensor]:
    parallel = start(config)
    for number in range(NUM_STEPS):
        step(parallel, number)
    return parallel.full_state()


def off(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    difference = sum(float((ours[name] - theirs[name]).square().sum()) for name in theirs)
    return (difference / sum(float(part.square().sum()) for part in theirs.values())) ** 0.5


def test_the_defaults_are_plain_torch_to_the_bit() -> None:
    network = rank_checks.make_network()
    matrices = [p for p in network.parameters() if p.ndim == 2]
    others = [p for p in network.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.01},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=3e-3,
        betas=(0.9, 0.98),
        fused=True,
    )
    for number in range(NUM_STEPS):
        inputs, wanted = rank_checks.make_batch(number)
        optimizer.zero_grad()
        (network(*inputs) - wanted).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    ours = trained(ParallelConfig())
    for name, tensor in network.state_dict().items():
        assert torch.equal(ours[name], tensor)


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_strategies_of_one_process_are_the_plain_run(strategy: str) -> None:
    ours = trained(ParallelConfig(strategy=strategy))  # type: ignore[arg-type]
    plain = trained(ParallelConfig())
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_recomputed_blocks_keep_less_and_give_the_same_bits() -> None:
    kept, states = {}, {}
    for on in (False, True):
        config = ParallelConfig(gradient_checkpointing=on)
        parallel = start(config)
        inputs, _ = rank_checks.make_batch(0)
        kept[on] = saved_bytes(lambda p=parallel, i=inputs: p.module(*i), parallel.module)
        states[on] = trained(config)
    assert kept[True] < 0.35 * kept[False]
    assert all(torch.equal(states[True][name], states[False][name]) for name in states[False])


def test_bfloat16_keeps_less_and_trains_near_float32() -> None:
    plain, low = trained(ParallelConfig()), trained(ParallelConfig(precision="bfloat16"))
    first = rank_checks.make_network().state_dict()
    change = {name: plain[name] - first[name] for name in first}
    assert off({name: low[name] - first[name] for name in first}, change) < 0.4
    assert all(tensor.dtype == torch.float32 for tensor in low.values())


def test_blocks_compile_together_with_recomputing() -> None:
    plain = trained(ParallelConfig())
    traced = trained(
        ParallelConfig(compile=True, compile_backend="eager", gradient_checkpointing=True)
    )
    assert off(traced, plain) < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_compiles_the_blocks() -> None:
    assert off(trained(ParallelConfig(compile=True)), trained(ParallelConfig())) < 1e-3


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_resumed_run_ends_in_the_bits_of_an_unbroken_one(precision: str) -> None:
    config = ParallelConfig(precision=precision, loss_scale=2.0**20)  # type: ignore[arg-type]
    unbroken = start(config)
    taken = [step(unbroken, number)[1] for number in range(4)]
    weights, optimizer = unbroken.full_state(), copy.deepcopy(unbroken.optimizer_state())
    resumed = start(config, seed=3)
    resumed.load_full_state(weights)
    resumed.load_optimizer_state(optimizer)
    for number in range(4, 6):
        assert step(unbroken, number) == step(resumed, number)
    ours, theirs = resumed.full_state(), unbroken.full_state()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(taken) != (precision == "float16")  # that scale overflows: it was learned, then kept
    assert resumed.optimizer_state()["scaler"] == unbroken.optimizer_state()["scaler"]


def test_a_state_without_a_loss_scale_does_not_resume_float16() -> None:
    state = start(ParallelConfig())
    step(state, 0)
    saved = state.optimizer_state()
    with pytest.raises(CheckpointError, match="precision is 'float16'"):
        start(ParallelConfig(precision="float16")).load_optimizer_state(saved)


def test_a_state_is_a_copy() -> None:
    parallel = start(ParallelConfig())
    step(parallel, 0)
    weights, optimizer = parallel.full_state(), parallel.optimizer_state()
    kept = copy.deepcopy((weights, optimizer["moments"]))
    step(parallel, 1)
    for name, tensor in weights.items():
        assert torch.equal(tensor, kept[0][name])
    for name, moments in optimizer["moments"].items():
        assert all(torch.equal(moments[key], kept[1][name][key]) for key in moments)


def test_patterns_choose_what_is_trained() -> None:
    parallel = start(ParallelConfig(trainable=("final_layer.*", "single_blocks.0.linear?.weight")))
    before = parallel.full_state()
    step(parallel, 0)
    after = parallel.full_state()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == set(parallel.parameters)
    assert "single_blocks.0.linear1.weight" in changed
    assert all(n.startswith(("final_layer.", "single_blocks.0.linear")) for n in changed)
    assert set(parallel.optimizer_state()["moments"]) == changed


def test_a_pattern_without_a_match_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'double_block\.\*'"):
        parallelise(rank_checks.make_network(), ParallelConfig(trainable=("double_block.*",)), CPU)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: ParallelConfig(comm_hook="powersgd", strategy="zero3"), "powersgd"),
        (lambda: ParallelConfig(comm_hook="powersgd", precision="float16"), "overflow"),
        (lambda: ParallelConfig(strategy="zero4"), "zero1"),  # type: ignore[arg-type]
        (lambda: ParallelConfig(powersgd_start=1), "2 or more"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    change: Callable[[], ParallelConfig], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        change()
