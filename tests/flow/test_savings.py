"""Each saving really happens: how often the network's halves are called, and on what shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hymotion_ray.config import Grid, SamplingConfig
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.flow.plan import MAX_GROUP, group_batches, plan_batches
from hymotion_ray.flow.solvers import solver_steps, stage_times

Make = Callable[..., Sampler]
Condition = tuple[Tensor, Tensor, Tensor]
TEXT_ROWS = 4


def calls(num_rows: int) -> int:
    return -(-num_rows // TEXT_ROWS)


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
@pytest.mark.parametrize("num_seeds", [1, 4, 8])
def test_text_runs_once_per_prompt_and_time_whatever_the_seeds(
    make_sampler: Make, condition: Condition, method: str, num_seeds: int
) -> None:
    sampler = make_sampler()
    sampling = SamplingConfig(num_steps=6, method=method)
    num_times = len(stage_times(solver_steps(method, 6)))
    rows = [Row(prompt, 20, seed) for seed in range(num_seeds) for prompt in (0, 2)]
    sampler.sample(*condition, rows, sampling)
    # Both prompts fall into the cell of 8 tokens; the null text is one token.
    assert sampler.work.text == {(4, 8): calls(2 * num_times), (4, 1): calls(num_times)}


def test_small_windows_repeat_no_text(make_sampler: Make, condition: Condition) -> None:
    """The last time of a 3/8 step is the first of the next window, and is taken over."""
    sampler = make_sampler(text_window_bytes=1)
    sampler.sample(*condition, [Row(0, 20, 1)], SamplingConfig(num_steps=5, method="rk4"))
    # Windows of one step: four times, then three new ones each.
    assert sampler.work.text == {(4, 8): 5, (4, 1): 5}


def test_null_text_runs_once_for_the_whole_job(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    sampling = SamplingConfig(num_steps=6)
    rows = [Row(0, 20, 1), Row(1, 40, 1), Row(4, 7, 3)]
    sampler.sample(*condition, rows, sampling)
    assert sampler.work.text[4, 1] == calls(6)
    sampler.sample(*condition, [Row(2, 30, 2)], sampling)
    assert sampler.work.text[4, 1] == calls(6)
    # Half the steps ask at times that are known already, up to rounding of the grid.
    sampler.sample(*condition, rows, SamplingConfig(num_steps=3))
    assert sampler.work.text[4, 1] <= calls(6) + calls(3)


def test_null_cache_stays_below_its_bound(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    size = sampler.network.text_row_bytes(1)
    small = make_sampler(null_cache_bytes=4 * size)
    for _ in range(3):
        small.sample(*condition, [Row(0, 20, 1)], SamplingConfig(num_steps=6))
        assert len(small.text._null_rows) == 4


def test_null_branch_that_keeps_its_context_is_shared_too(
    make_sampler: Make, condition: Condition
) -> None:
    sampler = make_sampler(enable_ctxt_null_feat=False)
    rows = [Row(prompt, 20, seed) for seed in range(5) for prompt in (0, 2)]
    sampler.sample(*condition, rows, SamplingConfig(num_steps=6))
    assert sampler.work.text == {(4, 8): calls(2 * 2 * 6)}


def test_no_guidance_means_no_null_branch(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    sampler.sample(*condition, [Row(0, 20, 1)], SamplingConfig(num_steps=6, guidance_scale=1.0))
    assert sampler.work.text == {(4, 8): calls(6)}
    assert sampler.work.motion == {(3, 20, 8): 6}


def test_motion_runs_on_the_clip_and_the_prompt_alone(
    make_sampler: Make, condition: Condition
) -> None:
    sampler = make_sampler()
    rows = [Row(0, 11, 1), Row(0, 20, 2), Row(1, 40, 1), Row(4, 3, 1)]
    sampler.sample(*condition, rows, SamplingConfig(num_steps=2))
    assert sampler.work.motion == {(6, 20, 8): 2, (6, 40, 4): 2, (6, 10, 4): 2}
    assert sampler.work.num_motion_rows == 36
    sampler.work.clear()
    sampler.sample_dense(*condition, rows, SamplingConfig(num_steps=2))
    assert sampler.work.motion == {(6, 40, 8): 4}
    assert sampler.work.num_text_rows == 24


@pytest.mark.parametrize("num_steps", [1, 2, 7])
@pytest.mark.parametrize(("method", "stages"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_network_calls_are_steps_times_stages(
    make_sampler: Make, condition: Condition, num_steps: int, method: str, stages: int
) -> None:
    sampler = make_sampler()
    sampler.sample(*condition, [Row(0, 20, 1)], SamplingConfig(num_steps=num_steps, method=method))
    assert sampler.work.motion == {(6, 20, 8): num_steps * stages}


def test_text_window_fits_its_bound(
    make_sampler: Make, condition: Condition, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make_sampler()
    sampler.text_window_bytes = 9 * sampler.network.text_row_bytes(8)
    taken: list[int] = []
    empty = sampler.network.empty_text_rows
    monkeypatch.setattr(
        sampler.network,
        "empty_text_rows",
        lambda rows, tokens: (taken.append(rows), empty(rows, tokens))[1],
    )
    rows = [Row(prompt, 20, 1) for prompt in (0, 2)]
    sampler.sample(*condition, rows, SamplingConfig(num_steps=7))
    # Two prompts and the null text a time. Of the three times that would fit two are taken, whose
    # text fills its calls, and all windows share one memory.
    assert sampler.grid.text_rows == 4
    assert taken == [6]


rows_of_a_call = st.lists(
    st.builds(Row, prompt=st.integers(0, 5), num_frames=st.integers(1, 40), seed=st.integers(0, 3)),
    max_size=40,
)


@given(rows_of_a_call, st.integers(1, 5), st.integers(1, 4))
def test_plan_holds_every_row_once_in_its_own_cell(
    rows: list[Row], num_rows: int, max_prompts: int
) -> None:
    grid = Grid(rows=num_rows, frame_step=10, token_cells=(4, 8))
    lengths = [8, 3, 5, 1, 4, 2]
    batches = plan_batches(rows, lengths, grid, 40)
    assert sorted(i for b in batches for i in b.indices) == list(range(len(rows)))
    for batch in batches:
        assert len(batch.padded_indices) == num_rows
        for i in batch.indices:
            assert batch.cell == grid.cell(rows[i].num_frames, lengths[rows[i].prompt], 40)
    cells = {b.cell for b in batches}
    for cell in cells:
        members = sum(len(b.indices) for b in batches if b.cell == cell)
        assert sum(b.cell == cell for b in batches) == -(-members // num_rows)
    groups = group_batches(batches, rows, lambda cell: max_prompts)
    assert [b for group in groups for b in group] == batches
    for group in groups:
        assert len({b.cell for b in group}) == 1
        assert len(group) <= MAX_GROUP
        prompts = {rows[i].prompt for b in group for i in b.indices}
        assert len(prompts) <= max_prompts or len(group) == 1


def test_equal_rows_of_one_call_are_equal(make_sampler: Make, condition: Condition) -> None:
    rows = [Row(1, 15, 3)] * 7
    latents = make_sampler().sample(*condition, rows, SamplingConfig(num_steps=2))
    assert all(torch.equal(latent, latents[0]) for latent in latents)
    assert len({latent.data_ptr() for latent in latents}) == 7
