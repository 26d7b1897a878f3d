"""Clips that join and leave between steps get the bits of `Sampler.sample` in the same cell."""

from __future__ import annotations

import pytest
import torch

from hymotion_ray.config import SamplingConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.flow import Row
from hymotion_ray.flow.stepwise import CellRun, Clip, kind_of, prepare_clip

ROWS = [Row(0, 20, 1), Row(1, 18, 2), Row(2, 15, 3), Row(0, 11, 4), Row(3, 20, 5), Row(4, 19, 6)]


def clip_of(sampler, condition, row: Row, sampling: SamplingConfig) -> Clip:
    context, vector, length = condition
    features = context[row.prompt, : int(length[row.prompt])]
    return prepare_clip(
        sampler, row.prompt, features, vector[row.prompt, 0], row.num_frames, row.seed, sampling
    )


def expected(sampler, condition, rows, samplings):
    return [
        sampler.sample(*condition, [row], sampling)[0]
        for row, sampling in zip(rows, samplings, strict=True)
    ]


def run_staggered(sampler, clips, full_rows=True):
    """A clip joins every step, in a batch of its own cell; latents in the order of `clips`."""
    waiting, runs, latents = list(clips), {}, {}
    while waiting or any(run.clips for run in runs.values()):
        if waiting:
            kind = kind_of(waiting[0], sampler)
            run = runs.setdefault(kind, CellRun(sampler, kind, full_rows=full_rows))
            if run.room:
                run.add([waiting.pop(0)])
        for run in runs.values():
            if run.clips:
                latents |= {id(clip): latent for clip, latent in run.step()}
    return [latents[id(clip)] for clip in clips]


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
@pytest.mark.parametrize("enable_ctxt_null_feat", [True, False])
def test_staggered_clips_have_the_bits_of_sample(
    make_sampler, condition, method, enable_ctxt_null_feat
):
    sampler = make_sampler(enable_ctxt_null_feat=enable_ctxt_null_feat)
    samplings = [
        SamplingConfig(num_steps=3 + i % 3, guidance_scale=(2.0, 1.0, 3.5)[i % 3], method=method)
        for i in range(len(ROWS))
    ]
    clips = [
        clip_of(sampler, condition, row, sampling)
        for row, sampling in zip(ROWS, samplings, strict=True)
    ]
    latents = run_staggered(sampler, clips)
    for latent, wanted in zip(latents, expected(sampler, condition, ROWS, samplings), strict=True):
        assert torch.equal(latent, wanted)


def test_without_full_rows_results_agree_to_rounding(make_sampler, condition):
    sampler = make_sampler()
    samplings = [SamplingConfig(num_steps=4, guidance_scale=2.0)] * len(ROWS)
    clips = [clip_of(sampler, condition, row, samplings[0]) for row in ROWS]
    latents = run_staggered(sampler, clips, full_rows=False)
    for latent, wanted in zip(latents, expected(sampler, condition, ROWS, samplings), strict=True):
        torch.testing.assert_close(latent, wanted, rtol=1e-4, atol=1e-4)


def test_a_clip_that_leaves_changes_no_other(make_sampler, condition):
    sampler = make_sampler()
    sampling = SamplingConfig(num_steps=4, guidance_scale=2.0)
    rows = [Row(0, 20, 1), Row(1, 18, 2), Row(4, 17, 3)]
    clips = [clip_of(sampler, condition, row, sampling) for row in rows]
    kind = kind_of(clips[0], sampler)
    run = CellRun(sampler, kind)
    run.add([clips[0], clips[2]])
    run.step()
    run.drop([clips[2]])
    run.add([clips[1]])
    latents = {}
    while run.clips:
        latents |= {id(clip): latent for clip, latent in run.step()}
    wanted = sampler.sample(*condition, rows[:1], sampling)[0]
    assert torch.equal(latents[id(clips[0])], wanted)
    assert id(clips[2]) not in latents


def test_seeds_of_a_prompt_share_its_text(make_sampler, condition):
    sampler = make_sampler()
    sampling = SamplingConfig(num_steps=8, guidance_scale=2.0)
    clips = [clip_of(sampler, condition, Row(1, 20, seed), sampling) for seed in range(3)]
    run = CellRun(sampler, kind_of(clips[0], sampler))
    run.add(clips)
    before = sampler.work.text.total()
    while run.clips:
        run.step()
    # 8 times of one prompt in calls of 4 rows; the null text was computed when the clips joined.
    assert sampler.work.text.total() - before == 2


def test_the_next_batch_of_a_shape_reads_its_text_where_the_last_one_did(make_sampler, condition):
    sampler = make_sampler()
    sampling = SamplingConfig(num_steps=3, guidance_scale=2.0)
    places, latents = set(), []
    for row in (Row(0, 20, 1), Row(0, 18, 2), Row(0, 20, 1)):
        clip = clip_of(sampler, condition, row, sampling)
        run = CellRun(sampler, kind_of(clip, sampler))
        run.add([clip])
        run.step()
        places.add(run._own_shelf().rows.key)
        run.step()
        latents += [latent for _, latent in run.step()]
    assert len(places) == 1
    assert torch.equal(latents[0], latents[2])
    assert torch.equal(latents[1], sampler.sample(*condition, [Row(0, 18, 2)], sampling)[0])


def test_impossible_clips_are_refused(make_sampler, condition):
    sampler = make_sampler()
    with pytest.raises(ConfigError, match="frames"):
        clip_of(sampler, condition, Row(0, 41, 1), SamplingConfig(num_steps=2))
    _, vector, _ = condition
    with pytest.raises(ConfigError, match="tokens"):
        prepare_clip(
            sampler, "x", torch.zeros(9, 10), vector[0, 0], 20, 1, SamplingConfig(num_steps=2)
        )
    with pytest.raises(ConfigError, match="wide"):
        prepare_clip(
            sampler, "x", torch.zeros(3, 9), vector[0, 0], 20, 1, SamplingConfig(num_steps=2)
        )
