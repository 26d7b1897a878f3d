"""Modes that leave the null branch out at times: what they compute, and whose bits those are."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hymotion_ray.config import ModelConfig, NetworkConfig, SamplingConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.flow import Row, Sampler
from hymotion_ray.flow.guidance import sampling_steps
from hymotion_ray.flow.stepwise import CellRun, kind_of, prepare_clip

Make = Callable[..., Sampler]
Condition = tuple[Tensor, Tensor, Tensor]
ROWS = [Row(0, 40, 1), Row(1, 12, 2), Row(2, 31, 1), Row(3, 7, 4), Row(1, 12, 3), Row(5, 10, 2)]
MODES = [
    SamplingConfig(num_steps=6, guidance_scale=3.0, guidance_interval=(0.2, 0.7)),
    SamplingConfig(num_steps=6, guidance_scale=3.0, null_every=2),
    SamplingConfig(num_steps=5, guidance_scale=2.0, guidance_interval=(0.1, 1.0), null_every=3),
]


def uses(sampling: SamplingConfig) -> list[list[str]]:
    return [[step.null_use(t) for t in step.times] for step in sampling_steps(sampling)]


def test_steps_say_ahead_what_they_do_about_the_null_branch() -> None:
    interval, every, both = MODES
    assert uses(interval) == [["none"]] * 2 + [["new"]] * 3 + [["none"]]
    assert uses(every) == [["new"], ["kept"]] * 3
    assert uses(both) == [["none"], ["new"], ["kept"], ["kept"], ["new"]]
    # A step that guidance reaches half way computes it there, and is the first that counts.
    halved = replace(both, num_steps=4, guidance_interval=(0.1, 1.0), method="midpoint")
    assert uses(halved) == [["none", "new"], ["kept"] * 2, ["kept"] * 2, ["new"] * 2]
    # Times are float32, and so are the ends: 0.8 of the user is 0.8 of the solver.
    ends = SamplingConfig(num_steps=10, guidance_interval=(0.1, 0.8))
    assert [use for (use,) in uses(ends)] == ["none"] + ["new"] * 8 + ["none"]


@pytest.mark.parametrize(
    ("mode", "method", "null_context"),
    [
        (MODES[0], "euler", True), (MODES[1], "midpoint", False), (MODES[2], "rk4", True),
        (MODES[2], "euler", False),
    ],
)  # fmt: skip
def test_shared_work_equals_dense_work(
    make_sampler: Make,
    condition: Condition,
    mode: SamplingConfig,
    method: str,
    null_context: bool,
) -> None:
    sampler = make_sampler(enable_ctxt_null_feat=null_context)
    sampling = replace(mode, method=method)
    unshortened = replace(sampling, guidance_interval=(0.0, 1.0), null_every=1)
    rows = ROWS[1:4]
    got = sampler.sample(*condition, rows, sampling)
    want = sampler.sample_dense(*condition, rows, sampling)
    exact = sampler.sample(*condition, rows, unshortened)
    for latent, dense, other in zip(got, want, exact, strict=True):
        assert (latent - dense).norm() / dense.norm() <= 1e-5
        assert (latent - other).norm() / other.norm() > 1e-4


@pytest.mark.parametrize("mode", MODES)
def test_bits_depend_on_the_row_alone(
    make_sampler: Make, condition: Condition, mode: SamplingConfig
) -> None:
    sampler = make_sampler()
    want = sampler.sample(*condition, ROWS, mode)
    choose = random.Random(1)
    for window_bytes in (1, 60_000):
        chosen = choose.sample(range(len(ROWS)), 4)
        other = make_sampler(text_window_bytes=window_bytes, null_cache_bytes=1)
        got = other.sample(*condition, [ROWS[i] for i in chosen], mode)
        assert all(torch.equal(got[k], want[i]) for k, i in enumerate(chosen))


@pytest.mark.parametrize(("method", "null_context"), [("euler", False), ("midpoint", True)])
def test_clips_that_join_between_steps_have_the_same_bits(
    make_sampler: Make, condition: Condition, method: str, null_context: bool
) -> None:
    """Clips of all modes share batches, each at a step and a use of its own."""
    sampler = make_sampler(enable_ctxt_null_feat=null_context)
    context, vector, length = condition
    rows = [Row(prompt, 20, seed) for seed, prompt in enumerate((0, 2, 0, 2, 0, 2))]
    samplings = [replace(MODES[i % 3], method=method) for i in range(len(rows))]
    clips = [
        prepare_clip(
            sampler, row.prompt, context[row.prompt, : int(length[row.prompt])],
            vector[row.prompt, 0], row.num_frames, row.seed, sampling,
        )
        for row, sampling in zip(rows, samplings, strict=True)
    ]  # fmt: skip
    kind = kind_of(clips[0], sampler)
    assert {kind_of(clip, sampler) for clip in clips} == {kind}
    run, waiting, latents = CellRun(sampler, kind), list(clips), {}
    while waiting or run.clips:
        if waiting and run.room:
            run.add([waiting.pop(0)])
        latents |= {id(clip): latent for clip, latent in run.step()}
    for clip, row, sampling in zip(clips, rows, samplings, strict=True):
        assert torch.equal(latents[id(clip)], sampler.sample(*condition, [row], sampling)[0])


def test_exact_clips_stay_out_of_such_batches(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    exact = replace(MODES[0], guidance_interval=(0.0, 1.0))
    kinds = [
        kind_of(prepare_clip(sampler, 0, condition[0][0], condition[1][0, 0], 20, 1, s), sampler)
        for s in (MODES[0], exact)
    ]
    assert not kinds[0].holds(kinds[1])
    assert not kinds[1].holds(kinds[0])


def test_work_is_saved(make_sampler: Make, condition: Condition) -> None:
    sampler = make_sampler()
    for mode, nulls in zip(MODES, (3, 3, 2), strict=True):
        sampler.work.clear()
        sampler.sample(*condition, [Row(0, 20, 1)], mode)
        assert sampler.work.motion == {(3, 20, 8): mode.num_steps + nulls}


def test_guidance_at_no_time_is_the_conditional_flow(
    make_sampler: Make, condition: Condition
) -> None:
    sampler = make_sampler()
    never = SamplingConfig(num_steps=4, guidance_scale=3.0, guidance_interval=(0.8, 1.0))
    plain = SamplingConfig(num_steps=4, guidance_scale=1.0)
    got, want = (sampler.sample(*condition, ROWS, s) for s in (never, plain))
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"guidance_interval": (0.5, 0.5)}, r"guidance_interval is \(0.5, 0.5\); allowed: two"),
        ({"guidance_interval": (-0.1, 1.0)}, "0 <= first < last <= 1"),
        ({"guidance_interval": (0.1, float("nan"))}, "0 <= first < last <= 1"),
        ({"guidance_interval": (0.1,)}, "0 <= first < last <= 1"),
        ({"null_every": 0}, "null_every is 0; allowed: 1 to 1000"),
    ],
)
def test_nonsense_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingConfig(**given)  # type: ignore[arg-type]


def test_a_model_cannot_make_them_its_default() -> None:
    network = NetworkConfig(
        feat_dim=16, num_layers=3, num_heads=2, ctxt_input_dim=4, vtxt_input_dim=4
    )
    with pytest.raises(ConfigError, match="null branch anew every 2 steps'; allowed: exact"):
        ModelConfig(network=network, sampling=SamplingConfig(null_every=2))
    words = SamplingConfig(guidance_interval=(0.1, 0.8), null_every=2).shortcuts
    assert words == ("guidance for t from 0.1 to 0.8", "null branch anew every 2 steps")
    assert SamplingConfig().shortcuts == ()
