"""Where work goes, and who is told to come back when."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest

from hymotion_ray.engine.serve.router import Full, PoolView, Router
from hymotion_ray.engine.serve.work import Load


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_router(speeds: dict[str, float], max_wait_s: float = 10.0) -> tuple[Router, Clock]:
    clock = Clock()
    router = Router([PoolView(name) for name in speeds], max_wait_s, clock)
    for name, speed in speeds.items():
        hear(router, name, speed, clock)
    return router, clock


def hear(router: Router, name: str, speed: float, clock: Clock, backlog: float = 0.0) -> None:
    router.pools[name].hear(Load(replica=f"{name}-1", backlog=backlog, speed=speed), clock.now)


def test_work_is_shared_in_proportion_to_speed():
    router, _ = make_router({"a10": 100.0, "a100": 300.0})
    for number in range(80):
        pool = router.choose(10.0)
        pool.sent[str(number)] = 10.0
    assert len(router.pools["a100"].sent) in range(59, 62)


def test_a_single_request_goes_to_the_faster_pool_unless_it_is_busy():
    router, clock = make_router({"a10": 100.0, "a100": 300.0})
    assert router.choose(50.0).name == "a100"
    hear(router, "a100", 300.0, clock, backlog=3000.0)
    assert router.choose(50.0).name == "a10"


def test_a_pool_that_fails_is_left_alone_and_tried_again_later():
    router, clock = make_router({"a10": 100.0, "a100": 300.0})
    router.failed(router.pools["a100"])
    assert router.choose(1.0).name == "a10"
    clock.now += 1.5
    assert router.choose(1.0).name == "a100"
    for _ in range(5):
        router.failed(router.pools["a100"])
    clock.now += 10.0
    assert router.choose(1.0).name == "a10"
    clock.now += 60.0
    hear(router, "a10", 100.0, clock)
    hear(router, "a100", 300.0, clock)
    assert router.choose(1.0).name == "a100"


def test_a_pool_that_is_silent_is_not_used():
    router, clock = make_router({"a10": 100.0})
    clock.now += 30.0
    router.pools["a10"].forget_silent(clock.now)
    assert router.choose(1.0) is None
    with pytest.raises(Full, match="no sampler"):
        router.admit("x", 1.0)


def test_an_empty_queue_takes_any_request():
    router, _ = make_router({"a": 100.0}, max_wait_s=10.0)
    router.admit("long", 5000.0)


def test_a_full_queue_says_how_long_its_excess_takes():
    router, _ = make_router({"a": 100.0}, max_wait_s=10.0)
    router.pools["a"].sent["old"] = 1500.0
    with pytest.raises(Full) as refused:
        router.admit("new", 100.0)
    assert refused.value.retry_after_s == pytest.approx(6.0)


def test_who_was_told_to_come_back_goes_before_who_was_not():
    router, clock = make_router({"a": 100.0}, max_wait_s=10.0)
    pool = router.pools["a"]
    pool.sent["old"] = 1000.0
    waits = []
    for name in ("first", "second", "third"):
        with pytest.raises(Full) as refused:
            router.admit(name, 100.0)
        waits.append(refused.value.retry_after_s)
    assert waits == pytest.approx([1.0, 2.0, 3.0])
    clock.now += 1.0
    hear(router, "a", 100.0, clock)
    pool.sent["old"] = 900.0
    with pytest.raises(Full):
        router.admit("passer-by", 100.0)
    router.admit("first", 100.0)
    pool.sent["first"] = 100.0
    with pytest.raises(Full):
        router.admit("second", 100.0)


def test_a_promise_that_is_not_kept_up_ends():
    router, clock = make_router({"a": 100.0}, max_wait_s=10.0)
    router.pools["a"].sent["old"] = 1000.0
    with pytest.raises(Full):
        router.admit("gone", 100.0)
    clock.now += 10.0
    hear(router, "a", 100.0, clock)
    router.pools["a"].sent["old"] = 850.0
    router.admit("other", 100.0)


def test_work_that_ended_early_makes_room_before_a_replica_says_so():
    router, clock = make_router({"a": 100.0}, max_wait_s=10.0)
    pool = router.pools["a"]
    hear(router, "a", 100.0, clock, backlog=1500.0)
    with pytest.raises(Full):
        router.admit("new", 100.0)
    pool.take_back(1500.0)
    router.admit("new", 100.0)
    assert pool.backlog(clock.now) == 0.0


def test_who_is_refused_again_keeps_its_place():
    router, clock = make_router({"a": 100.0}, max_wait_s=10.0)
    pool = router.pools["a"]
    pool.sent["old"] = 1000.0
    for name in ("first", "second"):
        with pytest.raises(Full):
            router.admit(name, 100.0)
    clock.now += 1.0
    hear(router, "a", 100.0, clock)
    pool.sent["old"] = 990.0  # slower than it was foretold
    with pytest.raises(Full) as again:
        router.admit("first", 100.0)
    # Its own excess alone, not the second's before it.
    assert again.value.retry_after_s == pytest.approx(0.9)
    clock.now += 1.0
    hear(router, "a", 100.0, clock)
    pool.sent["old"] = 900.0
    router.admit("first", 100.0)


def overloaded(
    patience_s: float, seconds: float = 300.0
) -> tuple[float, list[tuple[float, float]]]:
    """Clients at twice the pace, who come back when told and give up after `patience_s`.

    Returns the share of the time that the samplers worked, and (told, true) waits.
    """
    router, clock = make_router({"a": 1.5}, max_wait_s=8.0)
    start, dice, busy_until, idle = clock.now, random.Random(0), clock.now, 0.0
    waits: list[tuple[float, float]] = []
    times = itertools.accumulate(dice.expovariate(3.0) for _ in range(int(4 * seconds)))
    arrivals = [(start + time, n, 0.0, 0.0) for n, time in enumerate(times)]
    heapq.heapify(arrivals)
    while arrivals:
        now, number, first, told = heapq.heappop(arrivals)
        if now > start + seconds:
            break
        clock.now = now
        hear(router, "a", 1.5, clock, backlog=1.5 * max(0.0, busy_until - now))
        try:
            router.admit(str(number), 1.0)
        except Full as full:
            wait = math.ceil(full.retry_after_s)
            first, told = first or now, told or wait
            if now + wait - first <= patience_s:
                heapq.heappush(arrivals, (now + wait, number, first, told))
            continue
        if told:
            waits.append((told, now - first))
        idle += max(0.0, now - busy_until)
        busy_until = max(now, busy_until) + 1.0 / 1.5
    return 1.0 - idle / seconds, waits


@pytest.mark.parametrize("patience_s", [4.0, 30.0])
def test_clients_that_give_up_leave_no_sampler_idle(patience_s: float):
    share, waits = overloaded(patience_s)
    assert share > 0.95
    assert sum(0.5 <= true / told <= 2.0 for told, true in waits) >= 0.9 * len(waits) > 9
