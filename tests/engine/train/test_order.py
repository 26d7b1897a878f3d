"""Laws of the stream: every clip once an epoch, always the same, the same as the shard reader's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_shards import moving_clip, write_shards

from hymotion_ray.engine.train.order import StreamOrder, row_shares
from hymotion_ray.errors import InputError
from hymotion_ray.formats.shards import iter_shards


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(sum),
    window=st.integers(1, 12),
    seed=st.integers(0, 3),
)
def test_an_epoch_holds_every_clip_once(sizes: list[int], window: int, seed: int) -> None:
    shards = {f"s{n}": size for n, size in enumerate(sizes)}
    order = StreamOrder(shards, seed=seed, window=window)
    expected = sorted((name, row) for name, size in shards.items() for row in range(size))
    for epoch in range(2):
        first = epoch * order.num_clips
        places = [order.place(p) for p in range(first, first + order.num_clips)]
        assert sorted((p.shard, p.row) for p in places) == expected
        assert {p.epoch for p in places} == {epoch}


def test_each_epoch_has_an_order_of_its_own_and_a_seed_too() -> None:
    def epoch(seed: int, number: int) -> list[tuple[str, int]]:
        order = StreamOrder({"a": 20, "b": 20}, seed=seed, window=16)
        return [order.place(p)[1:] for p in range(40 * number, 40 * number + 40)]

    orders = [epoch(0, 0), epoch(0, 1), epoch(1, 0)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[i + 1 :])
    assert epoch(0, 1) == orders[1]


def test_the_order_is_that_of_the_shard_reader(tmp_path: Path) -> None:
    clips = [moving_clip(n, 24) for n in range(7)]
    folder = write_shards(tmp_path / "data", [clips[:3], clips[3:5], clips[5:]])
    ids = {c.clip_id: c for c in clips}
    shards = {"shards/train-00.parquet": 3, "shards/train-01.parquet": 2}
    order = StreamOrder(shards | {"shards/train-02.parquet": 2}, seed=4, window=3)
    by_place = {
        (f"shards/train-{shard:02d}.parquet", row): clips[first + row].clip_id
        for shard, first, size in ((0, 0, 3), (1, 3, 2), (2, 5, 2))
        for row in range(size)
    }
    for epoch in range(2):
        places = [order.place(p) for p in range(7 * epoch, 7 * epoch + 7)]
        ours = [by_place[place.shard, place.row] for place in places]
        assert ours == [c.clip_id for c in iter_shards(folder, seed=4, epoch=epoch, window=3)]
        assert set(ours) == set(ids)


def test_a_split_without_clips_is_refused() -> None:
    with pytest.raises(InputError, match="no clips"):
        StreamOrder({"a": 0}, seed=0, window=4)


@given(
    num_rows=st.integers(1, 60),
    shares=st.lists(st.floats(0.1, 9.0), min_size=1, max_size=8).map(tuple),
)
def test_shares_cut_a_batch_without_gap_or_overlap(
    num_rows: int, shares: tuple[float, ...]
) -> None:
    spans = row_shares(num_rows, shares)
    assert [row for first, end in spans for row in range(first, end)] == list(range(num_rows))
    if num_rows >= len(shares):
        assert all(end > first for first, end in spans)


def test_an_a100_with_three_times_an_a10s_share_gets_three_rows_of_four() -> None:
    assert row_shares(16, (3.0, 1.0)) == [(0, 12), (12, 16)]
