import pytest
import torch

from hymotion_ray.config import NetworkConfig
from hymotion_ray.config.parallel import ParallelConfig
from hymotion_ray.engine.train.block_calls import prepare_blocks
from hymotion_ray.engine.train.fit import fit, pass_bytes
from hymotion_ray.engine.train.held_bytes import saved_bytes
from hymotion_ray.engine.train.precision import Arithmetic, attention_kernels
from hymotion_ray.planning.memory import Memory

from .rank_checks import CPU, NETWORK, make_batch, make_network, start, step

FULL = NetworkConfig(
    feat_dim=1280,
    num_layers=27,
    num_heads=20,
    ctxt_input_dim=4096,
    vtxt_input_dim=768,
    mask_mode="narrowband",
    time_factor=1000.0,
    apply_rope_to_single_branch=False,
)
A10_BYTES = 22 * 2**30
"""What a 24 GB card has for use."""


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_pass_without_content_keeps_what_a_real_one_keeps(recomputed: bool) -> None:
    config = ParallelConfig(gradient_checkpointing=recomputed)
    gpu = torch.device("cuda")
    network = make_network()
    prepare_blocks(network, config, gpu)
    module = Arithmetic(network, "float32", CPU, attention_kernels(gpu))
    inputs, _ = make_batch(0)
    rows, num_frames = inputs[0].shape[:2]
    real = saved_bytes(lambda: module(*inputs), network)
    computed = pass_bytes(
        NETWORK, config, rows=rows, num_frames=num_frames, num_tokens=inputs[1].shape[1]
    )
    assert computed == real


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
