"""Laws of shards: what goes in comes out, an epoch is a pure permutation, damage is named."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hymotion_ray.errors import InputError
from hymotion_ray.formats import shards as shards_module
from hymotion_ray.formats.shard_order import epoch_order, window_order
from hymotion_ray.formats.shard_table import (
    SCHEMA,
    ShardCaption,
    ShardClip,
    encode_shard,
    from_table,
    open_shard,
    to_table,
)
from hymotion_ray.formats.shards import (
    ShardInfo,
    check_dataset,
    iter_shards,
    on_skeleton,
    open_dataset,
    read_shard,
    shard_mapping,
    stats_digest,
)
from hymotion_ray.motion.features import canonicalise
from hymotion_ray.motion.skeleton import Skeleton, generic_skeleton


def clip(number: int, num_frames: int = 24) -> ShardClip:
    draw = np.random.default_rng(number)
    return ShardClip(
        clip_id=f"clip-{number:04d}",
        split_group=f"group-{number // 2}",
        source="made up",
        licence="CC0-1.0",
        fps_src=120.0,
        transl=draw.normal(size=(num_frames, 3)).astype(np.float32),
        rot6d=draw.normal(size=(num_frames, 22, 6)).astype(np.float32),
        source_leg_length=0.75,
        scale=1.125,
        pelvis_offset=(0.0, -0.25, 0.5) if number % 2 else None,
        captions=(ShardCaption("läuft", 0.0, 0.5), ShardCaption("left", 0.25, 0.5, True))[
            : number % 3
        ],
        provenance={"up_axis": "z", "unit_m": 0.01, "frames": 3, "ok": True},
        quality={"skate": 0.25, "facing": None},
    )


def write_dataset(folder: Path, sizes: list[int], split: str = "train") -> list[str]:
    """A dataset with shards of these many clips; the clip ids."""
    (folder / "shards").mkdir(parents=True)
    rows, ids = [], []
    for number, size in enumerate(sizes):
        clips = [clip(1000 * number + k, 20 + k % 5) for k in range(size)]
        content = encode_shard(to_table(clips), row_group_bytes=40_000)
        name = f"shards/{split}-{number:02d}.parquet"
        (folder / name).write_bytes(content)
        ids += [c.clip_id for c in clips]
        rows.append(
            shard_mapping(
                ShardInfo(
                    name=name,
                    split=split,
                    num_clips=size,
                    num_frames=sum(c.num_frames for c in clips),
                    num_bytes=len(content),
                    sha256=hashlib.sha256(content).hexdigest(),
                )
            )
        )
    mean, std = np.linspace(0, 1, 201), np.linspace(1, 2, 201)
    stats = json.dumps(
        {
            "mean": mean.tolist(),
            "std": std.tolist(),
            "num_frames": 10,
            "digest": stats_digest(mean, std),
        }
    ).encode()
    (folder / "stats.json").write_bytes(stats)
    manifest = {
        "schema_version": 1,
        "skeleton": generic_skeleton().rest.tolist(),
        "shards": rows,
        "stats_sha256": hashlib.sha256(stats).hexdigest(),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return ids


def same(one: ShardClip, other: ShardClip) -> bool:
    quality = {k: v for k, v in other.quality.items() if v is not None}
    names = ["clip_id", "split_group", "source", "licence", "fps_src", "source_leg_length"]
    names += ["scale", "pelvis_offset", "captions", "provenance"]
    return (
        np.array_equal(one.transl, other.transl)
        and np.array_equal(one.rot6d, other.rot6d)
        and quality == {k: v for k, v in one.quality.items() if v is not None}
        and all(getattr(one, name) == getattr(other, name) for name in names)
    )


def test_clips_come_back_to_the_bit():
    clips = [clip(k, 20 + k) for k in range(9)]
    content = encode_shard(to_table(clips), row_group_bytes=60_000)
    file = open_shard(content, "x")
    assert file.num_row_groups > 1
    back = [c for g in range(file.num_row_groups) for c in from_table(file.read_row_group(g))]
    assert [c.clip_id for c in back] == [c.clip_id for c in clips]
    assert all(map(same, clips, back))
    back[0].transl[:] = 0  # each has arrays of its own, which may be written to
    assert same(clips[1], back[1])


def test_a_sliced_table_gives_its_own_rows():
    clips = [clip(k, 20 + k) for k in range(6)]
    back = list(from_table(to_table(clips).slice(2, 3)))
    assert all(map(same, clips[2:5], back))


def test_the_columns_are_the_contract():
    assert SCHEMA.names[:8] == [
        *("clip_id", "split_group", "source", "licence", "fps_src"),
        *("num_frames", "transl", "rot6d"),
    ]
    table = pq.read_table(io.BytesIO(encode_shard(to_table([clip(1)]), 1e6)))
    assert table.schema.field("transl").type == pa.list_(pa.field("element", pa.float32()))
    assert len(table["rot6d"][0].as_py()) == 24 * 22 * 6
    assert table["captions"][0].as_py()[0] == {
        "text": "läuft", "start": 0.0, "end": 0.5, "mirrored": False,
    }  # fmt: skip


def test_the_same_clips_give_the_same_bytes():
    def made() -> bytes:
        return encode_shard(to_table([clip(k) for k in range(5)]), 1e5)

    assert made() == made()


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_an_epoch_is_every_clip_once_in_an_order_of_seed_and_epoch_alone(tmp_path, window):
    ids = write_dataset(tmp_path / "d", [5, 12, 3, 9])

    def order(seed: int, epoch: int) -> list[str]:
        clips = iter_shards(tmp_path / "d", seed=seed, epoch=epoch, window=window)
        return [c.clip_id for c in clips]

    first = order(1, 0)
    assert sorted(first) == sorted(ids)
    assert order(1, 0) == first
    assert order(1, 1) != first
    assert order(2, 0) != first
    assert first != ids


def test_clips_of_different_shards_meet_in_one_window(tmp_path):
    write_dataset(tmp_path / "d", [16, 16, 16, 16])
    clips = list(iter_shards(tmp_path / "d", window=64))
    half = Counter(c.clip_id[5:7] for c in clips[:32])
    assert len(half) == 4
    assert max(half.values()) < 16


def test_an_epoch_goes_on_after_what_was_seen(tmp_path):
    write_dataset(tmp_path / "d", [5, 12, 3, 9])
    whole = [c.clip_id for c in iter_shards(tmp_path / "d", seed=3, window=6)]
    for skip in (0, 1, 6, 13, 28, 29, 40):
        rest = [c.clip_id for c in iter_shards(tmp_path / "d", seed=3, window=6, skip=skip)]
        assert rest == whole[skip:]


@pytest.mark.parametrize("num_parts", [2, 3, 4, 7])
def test_parts_share_an_epoch_without_gap_or_overlap(tmp_path, num_parts):
    """With fewer shards than parts too, where rows are dealt."""
    ids = write_dataset(tmp_path / "d", [5, 12, 3, 9])
    parts = [
        [
            c.clip_id
            for c in iter_shards(tmp_path / "d", seed=1, window=4, part=k, num_parts=num_parts)
        ]
        for k in range(num_parts)
    ]
    assert sorted(name for part in parts for name in part) == sorted(ids)
    for k, part in enumerate(parts):
        rest = iter_shards(tmp_path / "d", seed=1, window=4, part=k, num_parts=num_parts, skip=2)
        assert [c.clip_id for c in rest] == part[2:]


def test_every_shard_is_opened_once_and_not_for_clips_already_seen(tmp_path, monkeypatch):
    write_dataset(tmp_path / "d", [8] * 6)
    opened: Counter[str] = Counter()
    real = shards_module.read_shard

    def counting(dataset, shard):
        opened[shard.name] += 1
        return real(dataset, shard)

    monkeypatch.setattr(shards_module, "read_shard", counting)
    list(iter_shards(tmp_path / "d", window=10))
    assert list(opened.values()) == [1] * 6
    opened.clear()
    list(iter_shards(tmp_path / "d", window=8, skip=24))
    assert len(opened) == 3


def test_shards_added_later_leave_the_order_of_the_others():
    some = [f"shards/train-{k}.parquet" for k in range(20)]
    more = [f"shards/train-{k}x.parquet" for k in range(5)]
    before = epoch_order(some, 7, 3)
    assert [name for name in epoch_order(some + more, 7, 3) if name in some] == before
    assert before != some


def test_the_order_in_a_window_never_changes_between_releases():
    """Golden: an order that changed would silently change every run that is resumed."""
    assert window_order(8, 1, 2, 3).tolist() == [0, 1, 5, 6, 7, 3, 2, 4]
    for size in (0, 1, 2, 1000):
        assert sorted(window_order(size, 5, 6, 7).tolist()) == list(range(size))


def test_a_window_is_shuffled_evenly():
    """Each place of a window gets each clip about as often, over many windows."""
    hits = np.zeros((6, 6))
    for number in range(3000):
        hits[np.arange(6), window_order(6, 0, 0, number)] += 1
    assert np.abs(hits / 500 - 1).max() < 0.25


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-20],
        lambda data: data[:100] + b"\xff" + data[101:],
        lambda data: b"",
        lambda data: b"PAR1 something else",
    ],
    ids=["torn", "flipped", "empty", "foreign"],
)
def test_a_damaged_shard_is_named(tmp_path, damage):
    write_dataset(tmp_path / "d", [4, 4])
    path = tmp_path / "d" / "shards" / "train-01.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"train-01\.parquet.*(torn|changed)"):
        list(iter_shards(tmp_path / "d"))
    (problem,) = check_dataset(tmp_path / "d")
    assert "train-01.parquet" in problem


def test_missing_and_foreign_files_are_named_and_the_foreign_are_never_read(tmp_path):
    ids = write_dataset(tmp_path / "d", [4, 4])
    (tmp_path / "d" / "shards" / "train-99.parquet").write_bytes(b"foreign")
    assert sorted(c.clip_id for c in iter_shards(tmp_path / "d")) == sorted(ids)
    (problem,) = check_dataset(tmp_path / "d")
    assert "train-99.parquet" in problem
    assert "foreign" in problem
    (tmp_path / "d" / "shards" / "train-00.parquet").unlink()
    assert len(check_dataset(tmp_path / "d")) == 2
    with pytest.raises(InputError, match=r"train-00\.parquet"):
        list(iter_shards(tmp_path / "d"))


def test_a_parquet_file_that_is_no_shard_is_refused():
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), sink)
    with pytest.raises(InputError, match="schema version none"):
        open_shard(sink.getvalue(), "other.parquet")


def test_a_folder_without_a_dataset_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match="hymotion-ray ingest"):
        open_dataset(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 99}')
    with pytest.raises(InputError, match="schema version 99"):
        open_dataset(tmp_path)


def test_statistics_of_another_dataset_are_refused(tmp_path):
    write_dataset(tmp_path / "d", [4])
    stats = open_dataset(tmp_path / "d").stats()
    assert stats.mean[200] == 1.0
    assert stats.std[0] == 1.0
    assert stats.digest == stats_digest(stats.mean, stats.std)
    path = tmp_path / "d" / "stats.json"
    path.write_text(path.read_text().replace("1.0", "1.5"))
    with pytest.raises(InputError, match=r"stats\.json does not belong"):
        open_dataset(tmp_path / "d").stats()


def test_unknown_splits_and_arguments_are_refused(tmp_path):
    write_dataset(tmp_path / "d", [4])
    with pytest.raises(InputError, match="training"):
        list(iter_shards(tmp_path / "d", "training"))
    with pytest.raises(InputError, match="window"):
        list(iter_shards(tmp_path / "d", window=0))
    assert list(iter_shards(tmp_path / "d", "val")) == []


def test_a_shard_reads_alone(tmp_path):
    write_dataset(tmp_path / "d", [4, 4])
    dataset = open_dataset(tmp_path / "d")
    (shard,) = [s for s in dataset.shards("train") if s.name.endswith("01.parquet")]
    assert [c.clip_id for c in read_shard(dataset, shard)] == [f"clip-{1000 + k}" for k in range(4)]
    assert dataset.num_clips("train") == 8
    assert dataset.skeleton.same_as(generic_skeleton())


def test_a_clip_goes_onto_another_body_and_back():
    """A body of other size and proportions, whose rest pelvis lies elsewhere."""
    ours = generic_skeleton()
    rest = ours.rest * np.array([1.1, 0.8, 1.1], dtype=np.float32) + 0.05
    other = Skeleton(rest.astype(np.float32))
    source = clip(3)
    rot6d, transl = canonicalise(
        torch.from_numpy(source.rot6d).double(), torch.from_numpy(source.transl).double(), ours
    )
    source = dataclasses.replace(source, rot6d=rot6d.float().numpy(), transl=transl.float().numpy())
    moved_rot6d, moved_transl = on_skeleton(source, ours, other)
    np.testing.assert_allclose(moved_rot6d, source.rot6d, atol=1e-5)
    travel = np.diff(source.transl, axis=0) * other.leg_length / ours.leg_length
    np.testing.assert_allclose(np.diff(moved_transl, axis=0), travel, atol=1e-5)
    back = dataclasses.replace(source, rot6d=moved_rot6d, transl=moved_transl)
    _, again = on_skeleton(back, other, ours)
    np.testing.assert_allclose(again, source.transl, atol=1e-5)
    assert on_skeleton(source, ours, generic_skeleton())[1] is source.transl
