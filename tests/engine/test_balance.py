from __future__ import annotations

import io
from dataclasses import dataclass

import pytest

from hymotion_ray.engine.balance import cost, laggards, waiting_words
from hymotion_ray.engine.progress import JobProgress


@dataclass
class Process:
    name: str
    pace: float | None
    num_finished: int = 9


def test_a_process_slower_than_its_like_is_named() -> None:
    peers = [("sample on A10", Process(f"sample-{n}", 1.0)) for n in range(3)]
    slow = ("sample on A10", Process("sample-9", 2.5))
    other_kind = ("sample on T4", Process("sample-8", 9.0))
    (line,) = laggards([*peers, slow, other_kind])
    assert line == "sample-9 takes 2.5 times as long a chunk as the others on sample on A10"
    assert laggards(peers) == []
    assert laggards([*peers, ("sample on A10", Process("new", 9.0, num_finished=1))]) == []


def test_a_step_that_samplers_wait_for_is_named() -> None:
    line = waiting_words({"encode": 0.99, "sample": 0.5, "finish": 0.2})
    assert line is not None
    assert line.startswith("samplers waited 50 % of their time; the encode step was busy 99 %")
    assert waiting_words({"encode": 0.2, "sample": 0.95, "finish": 0.9}) is None
    assert waiting_words({"render": 0.5}) is None


def test_cost_goes_by_kind_and_is_unknown_where_a_price_is() -> None:
    seconds = {"NVIDIA A100-SXM4-80GB": 7200.0, "NVIDIA A10G": 3600.0}
    assert cost(seconds, {"A100": 3.0, "A10": 1.0}) == pytest.approx(2 * 3.0 + 1.0)
    assert cost(seconds, {"A100": 3.0}) is None
    assert cost({}, {"A100": 3.0}) is None


def test_shares_of_kinds_stand_in_the_line() -> None:
    with JobProgress(total=8, stream=io.StringIO()) as progress:
        progress.update(3, 0, "A100")
        assert "A100" not in progress.words()
        progress.update(1, 0, "A10")
        progress.update(0, 1, "A10")
        assert progress.words().startswith("4/8 clips, 1 failed")
        assert progress.words().endswith("A100 75 % + A10 25 %")
