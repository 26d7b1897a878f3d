"""Laws of examples and loaders: a function of seed and position alone, at any number of ranks."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from made_shards import CAPTIONS, moving_clip, small_dataset, spoiled, write_shards
from train_runs import debug_config, prepare

from hymotion_ray.engine.train.examples import choose_caption, clip_texts, make_example
from hymotion_ray.engine.train.feed import Prefetched, process_steps, steps_from
from hymotion_ray.engine.train.loader import BatchLoader, LoaderSpec
from hymotion_ray.engine.train.micro_batch import MicroBatch, pack, unpack
from hymotion_ray.engine.train.origin import find_origin
from hymotion_ray.errors import ClusterError, InputError
from hymotion_ray.formats.shard_table import ShardCaption
from hymotion_ray.formats.shards import open_dataset


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> LoaderSpec:
    folder = tmp_path_factory.mktemp("loader")
    return make_spec(small_dataset(folder / "data"), folder / "out")


def make_spec(data: Path, out: Path, *assignments: str) -> LoaderSpec:
    config = debug_config(data, out, *assignments)
    job = prepare(config)
    dataset = open_dataset(data)
    return LoaderSpec(
        data=str(data),
        split="train",
        global_batch=8,
        micro_batch=3,
        shares=(1.0,),
        rank=0,
        rules=find_origin(config, dataset).rules(config, dataset),
        feature_store=job.feature_store,
        encoder=job.encoder,
    )


def rows(batches: list[MicroBatch]) -> dict[str, list[torch.Tensor]]:
    """Rows by clip, cut to their lengths, fillers left out."""
    found: dict[str, list[torch.Tensor]] = {}
    for batch in batches:
        for i, clip_id in enumerate(batch.clip_ids):
            if clip_id:
                frames, tokens = int(batch.length[i]), int(batch.context_length[i])
                parts = [batch.x[i, :frames], batch.context[i, :tokens], batch.vector[i]]
                found[clip_id] = [*parts, batch.noise[i, :frames], batch.t[i], batch.drop[i]]
    return found


@pytest.mark.parametrize("shares", [(1.0, 1.0), (1.0,) * 4, (3.0, 1.0), (5.0, 1.0, 1.0)])
def test_the_global_batch_is_the_same_at_any_number_of_ranks(
    spec: LoaderSpec, shares: tuple[float, ...]
) -> None:
    whole = rows(BatchLoader(spec).load(8))
    parts: dict[str, list[torch.Tensor]] = {}
    passes = set()
    for rank in range(len(shares)):
        batches = BatchLoader(dataclasses.replace(spec, shares=shares, rank=rank)).load(8)
        passes.add(len(batches))
        parts |= rows(batches)
    assert len(passes) == 1  # every rank takes part in every pass
    assert parts.keys() == whole.keys()
    for clip_id, expected in whole.items():
        for a, b in zip(parts[clip_id], expected, strict=True):
            assert torch.equal(a, b)


def test_a_rank_of_few_rows_fills_up_with_rows_that_weigh_nothing(spec: LoaderSpec) -> None:
    uneven = dataclasses.replace(spec, shares=(30.0, 1.0), micro_batch=2, rank=1)
    batches = BatchLoader(uneven).load(0)
    assert len(batches) == 4
    assert sum(float(batch.weight.sum()) for batch in batches) == 1


def test_a_micro_batch_is_no_wider_than_its_bucket_and_pads_with_zeros(spec: LoaderSpec) -> None:
    for batch in BatchLoader(spec).load(0):
        assert batch.x.shape[1] in (32, 64)
        assert batch.x.shape[1] == 32 or int(batch.length.max()) > 32
        assert batch.context.shape[1] % 8 == 0
        for i, length in enumerate(batch.length.tolist()):
            assert not batch.x[i, length:].any()


def test_the_stream_goes_on_where_it_is_asked_to(spec: LoaderSpec) -> None:
    loader = BatchLoader(spec)
    stream = steps_from(loader.load, 0, 8)
    third = [next(stream) for _ in range(3)][2]
    resumed = next(steps_from(BatchLoader(spec).load, 16, 8))
    for a, b in zip(third, resumed, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:9], b[:9], strict=True))
        assert a.clip_ids == b.clip_ids


def test_what_is_packed_comes_back_to_the_bit(spec: LoaderSpec) -> None:
    batches = BatchLoader(spec).load(0)
    for a, b in zip(batches, unpack(pack(batches)), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:9], b[:9], strict=True))
        assert (a.clip_ids, a.bad_ids) == (b.clip_ids, b.bad_ids)


def test_a_thread_reads_ahead_in_order_and_passes_errors_on(spec: LoaderSpec) -> None:
    load = BatchLoader(spec).load

    def until_third(position: int) -> list[MicroBatch]:
        if position >= 16:
            raise InputError("a shard is torn")
        return load(position)

    feed = Prefetched(steps_from(until_third, 0, 8), depth=2, pin=False, timeout_s=60)
    assert [next(feed)[0].clip_ids, next(feed)[0].clip_ids] == [
        load(0)[0].clip_ids,
        load(8)[0].clip_ids,
    ]
    for _ in range(2):
        with pytest.raises(InputError, match="torn"):
            next(feed)
    feed.close()


def test_a_reader_that_hangs_is_told_after_the_timeout() -> None:
    gone = threading.Event()

    def silent() -> Iterator[list[MicroBatch]]:
        gone.wait(30)
        yield []

    feed = Prefetched(silent(), depth=1, pin=False, timeout_s=0.1)
    with pytest.raises(ClusterError, match=r"no clips to train on came within 0\.1 s"):
        next(feed)
    gone.set()
    feed.close()


def test_a_torn_shard_is_named(tmp_path: Path) -> None:
    data = small_dataset(tmp_path / "data")
    spec = make_spec(data, tmp_path / "out")
    shard = data / "shards/train-01.parquet"
    shard.write_bytes(shard.read_bytes()[:-7])
    epoch = dataclasses.replace(spec, global_batch=11)
    with pytest.raises(InputError, match=r"train-01\.parquet is torn or was changed"):
        BatchLoader(epoch).load(0)


def test_a_small_cache_changes_nothing(spec: LoaderSpec) -> None:
    data = dataclasses.replace(spec.rules.data, cache_mb=1)
    small = dataclasses.replace(spec, rules=dataclasses.replace(spec.rules, data=data))
    loader = BatchLoader(small)
    loader._reader._groups._max_bytes = loader._reader._files._max_bytes = 1
    assert [b.clip_ids for b in loader.load(0)] == [b.clip_ids for b in BatchLoader(spec).load(0)]


def test_a_clip_that_is_not_finite_weighs_nothing_and_is_named(tmp_path: Path) -> None:
    clips = [moving_clip(n) for n in range(4)]
    data = write_shards(tmp_path / "data", [[spoiled(clips[0]), *clips[1:]]])
    spec = dataclasses.replace(make_spec(data, tmp_path / "out"), global_batch=4, micro_batch=4)
    (batch,) = BatchLoader(spec).load(0)
    assert batch.bad_ids == ("clip-0000",)
    assert float(batch.weight.sum()) == 3
    assert batch.x.isfinite().all()


def test_mirrored_clips_take_captions_that_fit_them() -> None:
    told = ShardCaption("raises the left arm", 0.0, 1.0)
    assert choose_caption([told], False, 0.5)[0] == "raises the left arm"
    assert choose_caption([told], True, 0.5)[0] == "raises the right arm"
    own = ShardCaption("lifts the right arm", 0.0, 1.0, mirrored=True)
    assert choose_caption([told, own], True, 0.9)[0] == "lifts the right arm"
    assert choose_caption([], True, 0.5) == ("", None)
    assert clip_texts([told], mirrors=True) == ["raises the left arm", "raises the right arm"]


def test_a_caption_of_a_part_shows_that_part(spec: LoaderSpec) -> None:
    clip = moving_clip(3, 60)
    part = dataclasses.replace(clip, captions=(ShardCaption(CAPTIONS[0], 0.5, 1.5),))
    loader = BatchLoader(spec)
    assert len(make_example(part, 0, spec.rules, loader._captions).x) == 30
    silent = make_example(dataclasses.replace(clip, captions=()), 0, spec.rules, loader._captions)
    assert silent.drop
    assert silent.context.shape == (1, spec.rules.context_dim)


def test_what_is_drawn_depends_on_seed_and_position_alone(spec: LoaderSpec) -> None:
    clip, captions = moving_clip(3, 60), BatchLoader(spec)._captions
    rules = dataclasses.replace(
        spec.rules, objective=dataclasses.replace(spec.rules.objective, text_noise=0.2)
    )
    first, again = (make_example(clip, 7, rules, captions) for _ in range(2))
    assert torch.equal(first.noise, again.noise)
    assert torch.equal(first.context, again.context)
    assert first.t == again.t
    assert make_example(clip, 8, rules, captions).t != first.t
    other = dataclasses.replace(rules, seed=1)
    assert make_example(clip, 7, other, captions).t != first.t


def test_logit_normal_looks_at_the_middle(spec: LoaderSpec) -> None:
    clip, captions = moving_clip(3, 24), BatchLoader(spec)._captions
    spread = {}
    for law in ("uniform", "logit_normal"):
        objective = dataclasses.replace(spec.rules.objective, timestep=law, logit_std=0.5)
        rules = dataclasses.replace(spec.rules, objective=objective)
        t = torch.tensor([make_example(clip, p, rules, captions).t for p in range(150)])
        assert 0 <= float(t.min()) <= float(t.max()) <= 1
        spread[law] = float(t.std())
    assert spread["uniform"] == pytest.approx(12**-0.5, rel=0.15)
    assert spread["logit_normal"] < 0.2


@pytest.mark.slow
@pytest.mark.ray
def test_ray_data_reads_what_a_thread_reads_over_several_plans(
    ray: ModuleType, spec: LoaderSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hymotion_ray.engine.train import ray_feed

    monkeypatch.setattr(ray_feed, "_STEPS_A_PLAN", 2)
    load = BatchLoader(spec).load
    ours = list(ray_feed.ray_steps(spec, 8, num_steps=3, num_readers=1))
    theirs = [load(8 + 8 * step) for step in range(3)]
    assert [pack(step) for step in ours] == [pack(step) for step in theirs]


def test_processes_read_what_a_thread_reads(spec: LoaderSpec) -> None:
    load = BatchLoader(spec).load
    ours = list(process_steps(spec, 8, num_steps=3, num_readers=2))
    theirs = [load(8 + 8 * step) for step in range(3)]
    assert [pack(step) for step in ours] == [pack(step) for step in theirs]
