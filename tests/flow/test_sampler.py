"""Laws of the sampler: a row is itself whatever surrounds it, and shared work equals dense work."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hymotion_ray.config import Grid, SamplingConfig
from hymotion_ray.errors import ConfigError, SamplingError
from hymotion_ray.flow import Row, Sampler, nonfinite_rows

Make = Callable[..., Sampler]
Condition = tuple[Tensor, Tensor, Tensor]
EULER = SamplingConfig(num_steps=3, guidance_scale=3.0)
ROWS = [
    Row(0, 40, 1), Row(1, 12, 2), Row(1, 12, 3), Row(2, 31, 1), Row(3, 7, 4), Row(4, 40, 1),
    Row(5, 10, 2), Row(1, 40, 2), Row(0, 1, 9), Row(3, 33, 1), Row(2, 31, 5),
]  # fmt: skip


def relative(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
@pytest.mark.parametrize(
    ("scale", "null_context"), [(1.0, True), (0.0, True), (3.0, True), (3.0, False)]
)
@pytest.mark.parametrize("single_rope", [False, True])
def test_shared_work_equals_dense_work(
    make_sampler: Make,
    condition: Condition,
    method: str,
    scale: float,
    null_context: bool,
    single_rope: bool,
) -> None:
    sampler = make_sampler(
        {"apply_rope_to_single_branch": single_rope}, enable_ctxt_null_feat=null_context
    )
    sampling = SamplingConfig(num_steps=3, guidance_scale=scale, method=method)
    got = sampler.sample(*condition, ROWS, sampling)
    want = sampler.sample_dense(*condition, ROWS, sampling)
    assert [len(latent) for latent in got] == [row.num_frames for row in ROWS]
    assert all(latent.dtype == torch.float32 for latent in got)
    assert max(map(relative, got, want)) <= 1e-5


@pytest.mark.parametrize("null_context", [True, False])
@pytest.mark.parametrize(("num_threads", "num_rows"), [(1, 1), (1, 3), (2, 3)])
def test_bits_depend_on_the_row_alone(
    make_sampler: Make,
    condition: Condition,
    threads: Callable[[int], None],
    num_threads: int,
    null_context: bool,
    num_rows: int,
) -> None:
    """Other mates, order, prompt numbering, prompt count, window size and null cache: same bits."""
    threads(num_threads)
    grid = Grid(rows=num_rows, text_rows=num_rows, frame_step=10, token_cells=(4, 8))
    settings = {"enable_ctxt_null_feat": null_context, "grid": grid}
    sampler = make_sampler(**settings)
    # A parallel region is slow on a busy machine, so two threads take one step.
    sampling = SamplingConfig(num_steps=3 - num_threads, guidance_scale=3.0)
    want = sampler.sample(*condition, ROWS, sampling)
    choose = random.Random(num_threads)
    for window_bytes in (1, 60_000):
        chosen = choose.sample(range(len(ROWS)), choose.randint(1, len(ROWS)))
        prompts = choose.sample(range(6), 6)
        rows = [
            Row(prompts.index(ROWS[i].prompt), ROWS[i].num_frames, ROWS[i].seed) for i in chosen
        ]
        other = make_sampler(**settings, text_window_bytes=window_bytes, null_cache_bytes=1)
        for one in (sampler, other):
            got = one.sample(*(part[prompts] for part in condition), rows, sampling)
            assert all(torch.equal(got[k], want[i]) for k, i in enumerate(chosen))


def test_padding_of_the_context_changes_nothing(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    context, vector, length = condition
    want = sampler.sample(*condition, ROWS, EULER)
    garbage = torch.full((6, 5, 10), torch.nan)
    for prompt, n in enumerate(length.tolist()):
        context[prompt, n:] = torch.inf
    wide = torch.cat((context, garbage), dim=1)
    assert all(map(torch.equal, sampler.sample(wide, vector, length, ROWS, EULER), want))
    short = [row for row in ROWS if row.prompt != 0]
    got = sampler.sample(context[:, :5], vector, length.clamp(max=5), short, EULER)
    kept = [latent for row, latent in zip(ROWS, want, strict=True) if row.prompt != 0]
    assert all(map(torch.equal, got, kept))


def test_empty_prompt_is_the_null_text_as_one_token(
    make_sampler: Make, condition: Condition
) -> None:
    sampler = make_sampler()
    row = [Row(0, 20, 5)]
    vector = condition[1][:1]
    want = sampler.sample(torch.full((1, 1, 10), -0.4), vector, torch.tensor([1]), row, EULER)
    for context in (condition[0][:1], torch.empty(1, 0, 10)):
        got = sampler.sample(context, vector, torch.tensor([0]), row, EULER)
        assert torch.equal(got[0], want[0])
        assert (
            relative(
                sampler.sample_dense(context, vector, torch.tensor([0]), row, EULER)[0], want[0]
            )
            < 1e-5
        )


def test_seeds_and_prompts_and_settings_matter(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    rows = [Row(0, 20, 1), Row(0, 20, 2), Row(1, 20, 1), Row(2, 20, 1)]
    latents = sampler.sample(*condition, rows, EULER)
    others = [
        sampler.sample(
            *condition, rows[:1], SamplingConfig(num_steps=n, guidance_scale=s, method=m)
        )
        for n, s, m in ((4, 3.0, "euler"), (3, 2.0, "euler"), (3, 3.0, "midpoint"), (3, 3.0, "rk4"))
    ]
    every = [*latents, *(one for (one,) in others)]
    assert len({latent.numpy().tobytes() for latent in every}) == len(every)


def test_scale_of_at_most_one_is_the_conditional_flow(
    make_sampler: Make, condition: Condition
) -> None:
    sampler = make_sampler()
    zero, one = (
        sampler.sample(*condition, ROWS, SamplingConfig(num_steps=2, guidance_scale=scale))
        for scale in (0.0, 1.0)
    )
    assert all(map(torch.equal, zero, one))


def test_sampling_leaves_the_network_and_grad_mode_alone(
    make_sampler: Make, condition: Condition
) -> None:
    sampler = make_sampler()
    before = copy.deepcopy(sampler.network.state_dict())
    sampler.sample(*condition, ROWS, EULER)
    assert all(map(torch.equal, sampler.network.state_dict().values(), before.values()))
    assert torch.is_grad_enabled()
    length = torch.tensor([5])
    out = sampler.network(
        torch.randn(1, 5, 201), torch.randn(1, 5, 10), torch.randn(1, 1, 6), torch.rand(1),
        length, length,
    )  # fmt: skip
    out.sum().backward()


def test_progress_counts_every_step_and_can_stop(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    seen: list[tuple[int, int]] = []
    sampler.sample(*condition, ROWS, EULER, on_step=lambda *at: seen.append(at))
    total = seen[0][1]
    assert seen == [(i + 1, total) for i in range(total)]

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise InterruptedError

    sampler.work.clear()
    with pytest.raises(InterruptedError):
        sampler.sample(*condition, ROWS, EULER, on_step=stop)
    assert sum(sampler.work.motion.values()) == 2


def test_nothing_asked_is_nothing_done(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    assert sampler.sample(*condition, [], EULER) == []
    assert not sampler.work.motion
    assert not sampler.work.text


def test_rows_that_are_not_finite_are_named_and_spare_the_others(
    make_sampler: Make, condition: Condition
) -> None:
    sampler = make_sampler()
    context, vector, length = condition
    want = sampler.sample(*condition, ROWS, EULER)
    vector = vector.clone()
    vector[2] = torch.nan
    with pytest.raises(SamplingError, match=r"2 of 11 rows .* row 3 \(prompt 2, seed 1\), 10"):
        sampler.sample(context, vector, length, ROWS, EULER)
    got = sampler.sample(context, vector, length, ROWS, EULER, check=False)
    assert nonfinite_rows(got) == [3, 10]
    assert all(torch.equal(got[i], want[i]) for i in range(11) if i not in (3, 10))


def test_low_precision_is_close_and_can_be_redone(make_sampler: Make, condition: Condition) -> None:
    want = make_sampler().sample(*condition, ROWS, EULER)
    sampler = make_sampler()
    sampler.network.to(torch.bfloat16)
    low = Sampler(
        sampler.network,
        null_vector=sampler.null_vector,
        null_context=sampler.null_context,
        train_frames=40,
        grid=sampler.grid,
    )
    got = low.sample(*condition, ROWS, EULER)
    assert all(latent.dtype == torch.float32 for latent in got)
    assert max(map(relative, got, want)) < 0.1
    again = low.in_float32()
    assert again.network.dtype == torch.float32
    assert low.network.dtype == torch.bfloat16
    assert max(map(relative, again.sample(*condition, ROWS, EULER), want)) < 0.1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(0, 41, 1), r"row 1 asks for 41 frames; allowed: 1 to 40"),
        (Row(0, 0, 1), r"row 1 asks for 0 frames"),
        (Row(6, 10, 1), r"row 1 asks for prompt 6; allowed: 0 to 5"),
        (Row(-1, 10, 1), r"row 1 asks for prompt -1"),
        (Row(0, 10, 2**64), r"row 1 has seed"),
    ],
)
def test_bad_rows_are_named_before_any_work(
    make_sampler: Make, condition: Condition, row: Row, message: str
) -> None:
    sampler = make_sampler()
    for sample in (sampler.sample, sampler.sample_dense):
        with pytest.raises(ConfigError, match=message):
            sample(*condition, [ROWS[0], row], EULER)
    assert not sampler.work.text


def test_bad_conditions_are_named(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    context, vector, length = condition
    with pytest.raises(ConfigError, match="prompt 1 has context length 9; allowed: 0 to 8"):
        sampler.sample(context, vector, torch.tensor([8, 9, 1, 1, 1, 1]), ROWS, EULER)
    with pytest.raises(ConfigError, match=r"allowed: \(P, N, C\)"):
        sampler.sample(context[:5], vector, length, ROWS, EULER)
    with pytest.raises(ConfigError, match="train_frames is 50; allowed: 40"):
        Sampler(
            sampler.network,
            null_vector=sampler.null_vector,
            null_context=sampler.null_context,
            train_frames=50,
        )
