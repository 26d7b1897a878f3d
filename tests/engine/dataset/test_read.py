"""Reading: whatever a reader does costs its own file only, and is told."""

from __future__ import annotations

import pytest

from hymotion_ray.engine.dataset.attempts import Attempts
from hymotion_ray.engine.dataset.items import ReadClip, Rejected
from hymotion_ray.engine.dataset.listing import WorkFile
from hymotion_ray.engine.dataset.read import ReadStage


@pytest.fixture
def read(tmp_path, reader):
    def run(*texts: str, given_up=(), announce=lambda index: None):
        files = []
        for k, text in enumerate(texts):
            path = tmp_path / f"f{k}.clip"
            path.write_text(text)
            (source,) = reader.list(str(path))
            files.append(WorkFile(f"t/f{k}.clip", source))
        return list(ReadStage(reader, 300)(files, given_up, announce))

    return run


def told(items) -> list[str]:
    return [item.code if isinstance(item, Rejected) else item.name for item in items]


def test_clips_are_named_after_their_file(read):
    assert told(read("1 2", "3")) == ["t/f0.clip#1", "t/f0.clip#2", "t/f1.clip#3"]


def test_two_clips_of_one_name_get_names_of_their_own(read):
    assert told(read("1 1")) == ["t/f0.clip#1", "t/f0.clip#1~2"]


@pytest.mark.parametrize(
    ("fault", "code"), [("raise", "reader_died"), ("exit", "reader_died"), ("refuse", "bad_fps")]
)
def test_a_fault_costs_its_own_file_and_is_told(read, fault, code):
    items = read("1", fault, "2")
    assert told(items) == ["t/f0.clip#1", code, "t/f2.clip#2"]
    assert items[1].file == "t/f1.clip"
    assert items[1].message


def test_an_exception_before_the_first_clip_is_tried_once_more(tmp_path, reader, monkeypatch):
    (tmp_path / "a.clip").write_text("5")
    (source,) = reader.list(str(tmp_path / "a.clip"))
    real, calls = type(reader).read, []

    def shaky(self, file):
        calls.append(file)
        if len(calls) == 1:
            raise OSError("the network dropped")
        yield from real(self, file)

    monkeypatch.setattr(type(reader), "read", shaky)
    assert told(ReadStage(reader, 300)([WorkFile("a", source)])) == ["a#5"]
    assert len(calls) == 2


def test_clips_before_an_exception_are_kept_and_not_given_twice(read):
    assert told(read("1 raise 2")) == ["t/f0.clip#1", "reader_died"]


def test_a_part_that_is_refused_leaves_the_rest(read):
    assert told(read("1 part 2")) == ["t/f0.clip#1", "damaged", "t/f0.clip#2"]


def test_a_file_without_any_clip_is_told(read):
    assert told(read("")) == ["empty"]


def test_files_are_announced_and_given_up_ones_passed_by(read):
    heard = []
    items = read("1", "kill", "2", given_up=[1], announce=heard.append)
    assert told(items) == ["t/f0.clip#1", "reader_died", "t/f2.clip#2"]
    assert heard == [0, 2, None]
    assert isinstance(items[0], ReadClip)


def test_a_file_that_stops_its_process_is_found_by_the_second_start():
    attempts = Attempts(tries=2)
    assert attempts.begin("c") == (False, [])  # dies, nobody knows where
    for strikes in range(2):
        careful, given_up = attempts.begin("c")
        assert (careful, given_up) == (True, [])
        attempts.reading("c", 0)
        attempts.reading("c", 3)  # dies here
        assert strikes < 2
    assert attempts.begin("c") == (True, [3])
    attempts.end("c")
    assert attempts.begin("c") == (False, [])


def test_a_death_on_another_file_is_counted_for_that_one():
    attempts = Attempts(tries=2)
    attempts.begin("c")
    for index in (1, 2, 1):
        attempts.begin("c")
        attempts.reading("c", index)
    assert attempts.begin("c") == (True, [1])


def test_a_lost_node_blames_no_file():
    attempts = Attempts(tries=1)
    for k in range(20):
        assert attempts.begin("c", f"node{k}", [f"node{k}", f"node{k + 1}"])[1] == []
        attempts.reading("c", 2)
    assert attempts.begin("c", "node19", ["node19"])[1] == [2]


def test_deaths_outside_of_any_file_do_not_go_on_for_ever():
    attempts = Attempts(tries=1)
    for _ in range(10):
        assert attempts.begin("c")[1] == []
    with pytest.raises(RuntimeError, match="outside of any source file"):
        attempts.begin("c")
