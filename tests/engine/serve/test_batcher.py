"""The batcher: right bits for everyone, whoever else is there, fails, or leaves."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hymotion_ray.api import Model, Row, load_model
from hymotion_ray.config import Grid, SamplingConfig
from hymotion_ray.engine.serve.batcher import Batcher, BatchRules, Item, Outcome
from hymotion_ray.flow.stepwise import CellRun, prepare_clip

TEXTS = ["a person walks", "a person jumps twice", "someone waves"]
STEPS = SamplingConfig(num_steps=4, guidance_scale=2.0)


@pytest.fixture(scope="module")
def model(random_model) -> Model:
    return load_model(random_model)


class Bench:
    """A batcher, and the ends of its clips."""

    def __init__(self, model: Model, rows: int = 2, **rules) -> None:
        self.model = model
        self.sampler = model.new_sampler(dataclasses.replace(Grid(), rows=rows))
        self.batcher = Batcher(self.sampler, BatchRules(**rules))
        self.condition = model.encode(TEXTS)
        self.ends: dict[int, Outcome] = {}

    def item(self, prompt: int, num_frames: int, seed: int, **fields) -> Item:
        row = self.condition.row(prompt)
        sampling = fields.pop("sampling", STEPS)
        clip = prepare_clip(
            self.sampler, prompt, row.context, row.vector, num_frames, seed, sampling
        )
        fields = {"key": "k", "deadline": 0.0} | fields
        return Item(clip=clip, on_end=self._end, **fields)

    def _end(self, item: Item, outcome: Outcome) -> None:
        assert item.clip.seed not in self.ends, "a clip ends once"
        self.ends[item.clip.seed] = outcome

    def run(self) -> None:
        for _ in range(500):
            if not self.batcher.work():
                return
        raise AssertionError("the batcher does not come to an end")

    def expected(self, prompt: int, num_frames: int, seed: int, sampling=STEPS) -> torch.Tensor:
        c = self.condition
        row = Row(prompt=prompt, num_frames=num_frames, seed=seed)
        return self.sampler.sample(c.context, c.vector, c.length, [row], sampling)[0]


def test_exact_mode_gives_the_bits_of_a_render_in_the_same_cell(model):
    bench = Bench(model, exact=True)
    asked = [(n % 3, (30, 25, 60, 31)[n % 4], n) for n in range(9)]
    bench.batcher.submit([bench.item(*one) for one in asked])
    bench.run()
    for prompt, frames, seed in asked:
        assert torch.equal(bench.ends[seed].latent, bench.expected(prompt, frames, seed))


def test_settings_of_requests_mix(model):
    bench = Bench(model, rows=4, exact=True)
    settings = [SamplingConfig(num_steps=n, guidance_scale=g) for n, g in ((3, 2.0), (5, 1.0))]
    asked = [(n % 3, 30, n, settings[n % 2]) for n in range(6)]
    bench.batcher.submit([bench.item(*one[:3], sampling=one[3]) for one in asked])
    bench.run()
    for prompt, frames, seed, sampling in asked:
        assert torch.equal(bench.ends[seed].latent, bench.expected(prompt, frames, seed, sampling))


def test_late_clips_join_a_batch_under_way(model):
    bench = Bench(model, rows=2)
    bench.batcher.submit([bench.item(0, 30, 1)])
    bench.batcher.work()
    bench.batcher.submit([bench.item(1, 30, 2)])
    bench.run()
    assert bench.batcher.steps_taken == 5  # 4 steps of the first, the second one step behind
    for prompt, seed in ((0, 1), (1, 2)):
        torch.testing.assert_close(
            bench.ends[seed].latent, bench.expected(prompt, 30, seed), rtol=1e-4, atol=1e-4
        )


def test_a_cancelled_clip_is_out_before_the_next_step_and_its_place_is_taken(model):
    bench = Bench(model, rows=2)
    first, second, third = (bench.item(0, 30, seed) for seed in (1, 2, 3))
    bench.batcher.rules.max_live = 2
    bench.batcher._max_live = 2
    bench.batcher.submit([first, second, third])
    bench.batcher.work()
    assert third.started is None
    bench.batcher.cancel([first])
    assert bench.batcher.counts()[0] == 1
    bench.batcher.work()
    assert third.started is not None
    bench.run()
    assert set(bench.ends) == {2, 3}
    assert first.clip.num_done == 1


def test_no_step_runs_once_all_are_cancelled(model):
    bench = Bench(model, rows=2)
    items = [bench.item(0, 30, seed) for seed in range(5)]
    bench.batcher.submit(items)
    bench.batcher.work()
    steps = bench.batcher.steps_taken
    bench.batcher.cancel(items)
    assert bench.batcher.work() is False
    assert bench.batcher.steps_taken == steps
    assert bench.batcher.counts() == (0, 0, 0.0)
    assert bench.ends == {}


def test_five_hundred_cancelled_at_once_leave_nothing_behind(model):
    bench = Bench(model, rows=4)
    items = [bench.item(n % 3, 30, n) for n in range(500)]
    bench.batcher.submit(items)
    bench.batcher.work()
    bench.batcher.cancel(items)
    bench.batcher.submit([bench.item(0, 30, 1000)])
    bench.run()
    assert set(bench.ends) == {1000}


def test_clips_of_one_shape_wait_for_the_places_of_one_batch(model):
    bench = Bench(model, rows=2)
    bench.batcher.submit([bench.item(n % 3, 30, n) for n in range(6)])
    bench.batcher.submit([bench.item(0, 60, 10)])
    bench.batcher.work()
    assert bench.batcher.counts()[:2] == (3, 4)  # a full batch, and one of the other length
    bench.run()
    assert set(bench.ends) == {*range(6), 10}
    # 12 steps of full batches of two, and 4 of the long clip: no half-empty one.
    assert bench.batcher.steps_taken == 16


def test_the_nearest_end_goes_first(model):
    bench = Bench(model, rows=1)
    bench.batcher.submit([bench.item(0, 30, 1, deadline=9.0), bench.item(0, 60, 2, deadline=3.0)])
    bench.run()
    assert list(bench.ends) == [2, 1]


def test_a_rare_shape_does_not_wait_for_ever_behind_a_common_one(model):
    bench = Bench(model, rows=2)
    for seed in range(6):
        bench.batcher.submit([bench.item(0, 30, seed, deadline=float(seed))])
    bench.batcher.submit([bench.item(0, 90, 100, deadline=2.5)])
    next_seed = 6
    for _ in range(40):
        bench.batcher.work()
        if len(bench.batcher._queue) < 2:
            bench.batcher.submit([bench.item(0, 30, next_seed, deadline=float(next_seed))])
            next_seed += 1
    assert 100 in bench.ends


def test_one_bad_clip_fails_alone(model, monkeypatch):
    bench = Bench(model, rows=4)
    step = CellRun.step

    def fails_with_seed_2(run):
        if any(clip.seed == 2 and clip.num_done == 1 for clip in run.clips):
            raise RuntimeError("a bad row")
        return step(run)

    monkeypatch.setattr(CellRun, "step", fails_with_seed_2)
    bench.batcher.submit([bench.item(0, 30, seed) for seed in range(4)])
    bench.run()
    assert bench.ends[2].code == "sampling_failed"
    assert "a bad row" in bench.ends[2].error
    monkeypatch.undo()
    for seed in (0, 1, 3):
        torch.testing.assert_close(
            bench.ends[seed].latent, bench.expected(0, 30, seed), rtol=1e-4, atol=1e-4
        )
    # The error left nothing behind: the next batch is as ever.
    bench.batcher.submit([bench.item(1, 30, 9)])
    bench.run()
    assert bench.ends[9].latent is not None


def test_out_of_memory_halves_the_rows_and_says_so(model, monkeypatch):
    bench = Bench(model, rows=4, exact=True)
    stream = bench.sampler.network.motion_stream

    def two_rows_fit(x, text, layout):
        if len(x) > 4:  # both branches
            raise torch.OutOfMemoryError("no room")
        return stream(x, text, layout)

    monkeypatch.setattr(bench.sampler.network, "motion_stream", two_rows_fit)
    items = [bench.item(0, 30, seed) for seed in range(4)]
    bench.batcher.submit(items)
    bench.run()
    assert all(outcome.latent is not None for outcome in bench.ends.values())
    assert len(bench.ends) == 4
    assert "rows 2 instead of 4" in items[0].notes[0]
    assert items[0].cell == "2x30x16"


def test_out_of_memory_of_one_clip_is_its_own_failure(model, monkeypatch):
    bench = Bench(model, rows=1)

    def nothing_fits(x, text, layout):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(bench.sampler.network, "motion_stream", nothing_fits)
    bench.batcher.submit([bench.item(0, 30, 1)])
    bench.run()
    assert bench.ends[1].code == "out_of_memory"


def test_what_is_not_finite_is_tried_in_float32_and_spoils_no_other(model, monkeypatch):
    bench = Bench(model, rows=2)
    stream = bench.sampler.network.motion_stream

    def first_row_is_nan(x, text, layout):
        v = stream(x, text, layout).clone()
        v[0] = float("nan")
        return v

    monkeypatch.setattr(bench.sampler.network, "motion_stream", first_row_is_nan)
    items = [bench.item(0, 30, seed) for seed in (1, 2)]
    bench.batcher.submit(items)
    bench.run()
    assert bench.ends[1].code == "not_finite" or "float32 after not finite" in items[0].notes
    assert bench.ends[2].latent is not None


def test_backlog_falls_with_every_step(model):
    bench = Bench(model, rows=1)
    bench.batcher.submit([bench.item(0, 30, seed) for seed in range(2)])
    before = bench.batcher.counts()[2]
    assert before == pytest.approx(2 * 30 * 4 * 2)
    left = []
    while bench.batcher.work():
        left.append(bench.batcher.counts()[2])
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0.0
    assert bench.batcher.gauge.speed > 0
