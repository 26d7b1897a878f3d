import pytest
import torch

from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.lora import DOWN, UP, adapted_layers, merge, num_trained
from hymotion_ray.errors import ConfigError

from . import rank_checks
from .rank_checks import make_batch, make_network, start, step

LORA = ParallelConfig(lora_rank=4, lora_alpha=8)


def test_adapters_train_and_the_weights_beside_them_stay() -> None:
    parallel = start(LORA)
    before = parallel.full_state()
    for number in range(2):
        step(parallel, number)
    after = parallel.full_state()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == set(parallel.parameters)
    assert all(name.endswith((DOWN, UP)) for name in changed)
    assert set(parallel.optimizer_state()["moments"]) == changed
    trained, num_all = num_trained(parallel.module)
    assert trained == sum(p.numel() for p in parallel.parameters.values()) < 0.2 * num_all
    held = parallel.held()
    assert held.gradients == 4 * trained
    assert held.optimizer < 1.01 * 8 * trained + 10_000


def test_merged_weights_are_the_trained_network_under_published_names() -> None:
    parallel = start(LORA)
    for number in range(3):
        step(parallel, number)
    inputs, _ = make_batch(9)
    network = make_network(1)
    network.load_state_dict(parallel.merged_state())  # strict: exactly the published names
    with torch.no_grad():
        theirs, ours = network(*inputs), parallel.module(*inputs)
    untrained = make_network()(*inputs)
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    assert (ours - untrained).norm() > 1e-2 * theirs.norm()


def test_a_resumed_run_with_adapters_ends_in_the_same_bits() -> None:
    unbroken = start(LORA)
    step(unbroken, 0)
    resumed = start(LORA, seed=4)
    resumed.load_full_state(unbroken.full_state())
    resumed.load_optimizer_state(unbroken.optimizer_state())
    for parallel in (unbroken, resumed):
        step(parallel, 1)
    ours, theirs = resumed.full_state(), unbroken.full_state()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_layers_read_in_part_get_no_adapter() -> None:
    layers = adapted_layers(make_network())
    last = rank_checks.NETWORK.num_single_blocks - 1
    assert f"single_blocks.{last}.linear2" in layers
    assert f"single_blocks.{last}.linear1" not in layers
    assert "single_blocks.0.linear1" in layers
    assert not any("mod" in name for name in layers)


def test_patterns_choose_the_layers_with_adapters() -> None:
    config = ParallelConfig(lora_rank=2, trainable=("double_blocks.*.motion_*",))
    names = set(start(config).parameters)
    assert names
    assert all(".motion_" in name for name in names)
    with pytest.raises(ConfigError, match="names no adapted layer"):
        start(ParallelConfig(lora_rank=2, trainable=("final_layer.*",)))


def test_merging_without_adapters_changes_nothing() -> None:
    state = make_network().state_dict()
    merged = merge(state, ParallelConfig())
    assert merged.keys() == state.keys()
    assert all(torch.equal(merged[name], state[name]) for name in state)
