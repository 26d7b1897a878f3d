"""Duplicates, mirror images, splits and shards: decided by names alone, and for good."""

from __future__ import annotations

import pytest

from hymotion_ray.config.ingest import ShardConfig, SplitConfig
from hymotion_ray.engine.dataset.catalogue import Catalogue, ShardPlan, split_of

SPLITS = SplitConfig(val=0.2, test=0.2)
LARGE = ShardConfig()


def row(name: str, likeness: str, mirrored: str = "", group: str = "", frames: int = 100) -> dict:
    return {
        "clip": {
            "clip_id": name,
            "file": name.partition("#")[0],
            "split_group": group or name,
            "num_frames": frames,
            "likeness": likeness,
            "mirrored": mirrored or f"m-{likeness}",
            "data": 0,
            "row": 0,
        },
        "reject": None,
    }


@pytest.fixture
def catalogue(tmp_path):
    with Catalogue(tmp_path / "c.sqlite") as made:
        yield made


def finish(catalogue: Catalogue, shards: ShardConfig = LARGE) -> tuple[dict, list[ShardPlan]]:
    catalogue.drop_duplicates()
    plans = list(catalogue.assign(SPLITS, shards))
    kept = {clip["clip_id"]: clip for clip in catalogue.new_clips()}
    return kept, plans


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_copies_the_first_by_name_stays_whatever_came_first(catalogue, order):
    names = ["a", "b", "c"]
    for k in order:
        catalogue.add_chunk(f"chunk{k}", [row(names[k], "same")])
    kept, _ = finish(catalogue)
    assert list(kept) == ["a"]
    rejects = list(catalogue.new_rejects())
    assert [(r["name"], r["code"]) for r in rejects] == [("b", "duplicate"), ("c", "duplicate")]
    assert "a" in rejects[0]["message"]


def test_a_clip_of_an_earlier_round_stays(catalogue):
    catalogue.add_earlier_clips([row("z", "same", group="zg")["clip"]])
    catalogue.add_chunk("k", [row("a", "same"), row("b", "other")])
    kept, _ = finish(catalogue)
    assert list(kept) == ["b"]
    assert (catalogue.num_accepted("z"), catalogue.num_accepted("a")) == (1, 0)


def test_mirror_images_and_takes_of_copies_share_a_group(catalogue):
    """b mirrors a; d is another piece of the take that c, a copy of a, was cut from."""
    catalogue.add_chunk(
        "k",
        [
            row("a#1", "L", "R", group="a"),
            row("b#1", "R", "L", group="b"),
            row("c#1", "L", "R", group="c"),
            row("c#2", "else", group="c"),
            row("d#1", "alone", group="d"),
        ],
    )
    kept, _ = finish(catalogue)
    assert sorted(kept) == ["a#1", "b#1", "c#2", "d#1"]
    assert {name: clip["split_group"] for name, clip in kept.items()} == {
        "a#1": "a",
        "b#1": "a",
        "c#2": "a",
        "d#1": "d",
    }
    assert len({kept[n]["split"] for n in ("a#1", "b#1", "c#2")}) == 1


def test_a_group_of_an_earlier_round_gives_its_name_to_what_mirrors_it(catalogue):
    catalogue.add_earlier_clips([row("z", "L", "R", group="zg")["clip"]])
    catalogue.add_chunk("k", [row("a", "R", "L", group="a")])
    kept, _ = finish(catalogue)
    assert kept["a"]["split_group"] == "zg"
    assert kept["a"]["split"] == split_of("zg", SPLITS)


def test_splits_are_by_group_alone_and_near_their_shares(catalogue):
    names = [f"g{k}" for k in range(4000)]
    splits = [split_of(name, SPLITS) for name in names]
    assert abs(splits.count("val") / 4000 - 0.2) < 0.02
    assert abs(splits.count("test") / 4000 - 0.2) < 0.02
    # A share that grows moves groups out of train only.
    more = [split_of(name, SplitConfig(val=0.3, test=0.2)) for name in names]
    assert all(b == a for a, b in zip(splits, more, strict=True) if a != "train")


def test_shards_are_even_and_hold_every_clip_once_in_one_split(catalogue):
    for k in range(40):
        rows = [row(f"c{k:02d}-{i}", f"l{k}-{i}", frames=60 + 5 * i) for i in range(20)]
        catalogue.add_chunk(f"chunk{k:02d}", rows)
    kept, plans = finish(catalogue, ShardConfig(target_mb=2))
    assert len(kept) == 800
    assert len({plan.name for plan in plans}) == len(plans) > 8
    by_name = {clip["clip_id"]: clip for clip in kept.values()}
    assert sum(len(plan.entries) for plan in plans) == 800
    for plan in plans:
        members = [c for c in by_name.values() if c["shard"] == plan.name]
        assert len(members) == len(plan.entries)
        assert {c["split"] for c in members} == {plan.split}
        assert ShardPlan.from_json(plan.to_json()) == plan
    frames = [
        sum(c["num_frames"] for c in by_name.values() if c["shard"] == p.name)
        for p in plans
        if p.split == "train"
    ]
    assert max(frames) - min(frames) <= 2 * 155  # a clip at each end


def test_the_same_clips_give_the_same_shards_in_every_run(tmp_path):
    def names(folder: str) -> list[str]:
        with Catalogue(tmp_path / folder) as catalogue:
            for k in range(10):
                catalogue.add_chunk(f"chunk{k}", [row(f"c{k}-{i}", f"l{k}-{i}") for i in range(9)])
            return [plan.name for plan in finish(catalogue, ShardConfig(target_mb=0.5))[1]]

    assert names("a") == names("b")


def test_a_name_used_twice_is_told(catalogue):
    catalogue.add_chunk("k", [row("a", "one"), row("a", "two")])
    kept, _ = finish(catalogue)
    assert list(kept) == ["a"]
    assert [r["code"] for r in catalogue.new_rejects()] == ["id_taken"]


def test_a_settled_round_is_known_but_not_new(catalogue):
    catalogue.add_chunk("k", [row("a", "L"), row("b", "L")])
    finish(catalogue)
    catalogue.settle()
    assert list(catalogue.new_clips()) == list(catalogue.new_rejects()) == []
    assert catalogue.num_accepted("a") == 1
    assert list(catalogue.reasons("b")) == [("duplicate", True)]
    catalogue.add_chunk("k2", [row("c", "L")])
    assert finish(catalogue)[0] == {}
