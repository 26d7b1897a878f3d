"""Fair between keys, nearest end first within one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from hymotion_ray.engine.serve.fair_queue import FairQueue
from hymotion_ray.engine.serve.pace import SpeedGauge


@dataclass(eq=False)
class Thing:
    key: str
    kind: str = "a"
    deadline: float = 0.0
    cost: float = 1.0


def test_a_key_with_few_items_is_not_behind_one_with_many():
    queue = FairQueue()
    for _ in range(100):
        queue.push(Thing("many"))
    for _ in range(5):
        queue.push(Thing("few"))
    first = Counter(queue.pop().key for _ in range(10))
    assert first == {"many": 5, "few": 5}


def test_cost_counts_not_number():
    queue = FairQueue()
    for _ in range(20):
        queue.push(Thing("long", cost=4.0))
        queue.push(Thing("short", cost=1.0))
    served = Counter()
    for _ in range(20):
        item = queue.pop()
        served[item.key] += item.cost
    assert abs(served["long"] - served["short"]) <= 4.0


def test_within_a_key_the_nearest_end_goes_first_and_then_the_first_come():
    queue = FairQueue()
    items = [Thing("k", deadline=d) for d in (5.0, 1.0, 3.0, 1.0)]
    for item in items:
        queue.push(item)
    assert [queue.pop() for _ in items] == [items[1], items[3], items[2], items[0]]


def test_only_accepted_kinds_come_out():
    queue = FairQueue()
    queue.push(Thing("k", "a", deadline=1))
    wanted = Thing("k", "b", deadline=2)
    queue.push(wanted)
    assert queue.pop(lambda kind: kind == "b") is wanted
    assert queue.pop(lambda kind: kind == "b") is None
    assert len(queue) == 1


def test_a_key_that_was_away_gets_no_credit():
    queue = FairQueue()
    queue.push(Thing("away"))
    for _ in range(60):
        queue.push(Thing("steady"))
    for _ in range(31):
        queue.pop()
    for _ in range(30):
        queue.push(Thing("away"))
    first = Counter(queue.pop().key for _ in range(20))
    assert first["steady"] >= 9


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("ab"), st.integers(0, 5))))
def test_everything_that_went_in_comes_out_once(rows):
    queue = FairQueue()
    items = [Thing(key, kind, deadline) for key, kind, deadline in rows]
    for item in items:
        queue.push(item)
    removed = items[::3]
    assert all(queue.remove(item) for item in removed)
    assert not any(queue.remove(item) for item in removed)
    left = [queue.pop() for _ in range(len(queue))]
    assert queue.pop() is None
    assert {id(i) for i in left} | {id(i) for i in removed} == {id(i) for i in items}
    assert len(left) + len(removed) == len(items)


def test_speed_is_that_of_full_batches():
    gauge = SpeedGauge()
    assert gauge.speed == 0.0
    gauge.saw(1, 10.0, 1.0, now=0.0)
    gauge.saw(4, 30.0, 1.0, now=1.0)
    assert gauge.speed == 30.0
    for now in range(2, 60):
        gauge.saw(4, 30.0, 3.0, now=float(now))
    assert 10.0 <= gauge.speed < 12.0
    gauge.saw(1, 8.0, 1.0, now=500.0)  # the full batches were long ago
    assert 8.0 <= gauge.speed < 11.0
