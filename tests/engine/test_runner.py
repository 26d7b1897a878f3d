from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from standin import Pass, make_chunks

from hymotion_ray.engine.runner import Failure, StageRunner
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.errors import OutputError, TextEncoderError


class Doing(Pass):
    def __init__(self, act: Callable[[Chunk], Chunk]) -> None:
        self.name, self._act = "doing", act

    def __call__(self, chunk: Chunk) -> Chunk:
        return self._act(chunk)


def fail(error: BaseException) -> Callable[[Chunk], Chunk]:
    def act(chunk: Chunk) -> Chunk:
        raise error

    return act


def failure(error: BaseException) -> Failure:
    (chunk,) = make_chunks(2, 2)
    result, receipt = StageRunner([Doing(fail(error))], is_last=True).run(chunk.to_row())
    assert result is None
    assert receipt.finished is None
    assert receipt.failure is not None
    return receipt.failure


def test_a_result_is_handed_on_and_the_last_one_is_told() -> None:
    (chunk,) = make_chunks(2, 2)
    result, receipt = StageRunner([Pass("a"), Pass("b")], is_last=False).run(chunk.to_row())
    assert Chunk.from_row(result).items.equals(chunk.items)
    assert list(receipt.seconds) == ["a", "b"]
    result, receipt = StageRunner([Pass("a")], is_last=True).run(chunk.to_row())
    assert result is None
    assert receipt.finished.equals(chunk.items)


def test_what_is_raised_becomes_a_failure_with_its_reason() -> None:
    assert failure(ValueError("boom")).text == "doing: ValueError: boom"
    assert failure(SystemExit(1)).text == "doing: SystemExit: 1"
    assert failure(TextEncoderError("no such file")).text == "doing: no such file"


def test_outputs_that_cannot_be_written_stop_the_job() -> None:
    assert failure(OutputError("disk full")).stops_job
    assert not failure(ValueError("boom")).stops_job


def test_a_fault_of_the_gpu_taints_the_process() -> None:
    assert failure(RuntimeError("CUDA error: an illegal memory access")).taints_process
    assert not failure(ValueError("boom")).taints_process


def test_what_ends_the_process_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        failure(KeyboardInterrupt())


def test_items_that_failed_pass_by_all_stages_but_the_last() -> None:
    def explode(chunk: Chunk) -> Chunk:
        raise AssertionError("called")

    (chunk,) = make_chunks(2, 2)
    seen: list[pa.Table] = []

    def note(chunk: Chunk) -> Chunk:
        seen.append(chunk.items)
        return chunk

    row = chunk.with_all_failed("bad", "why").to_row()
    _, receipt = StageRunner([Doing(explode), Doing(note)], is_last=True).run(row)
    assert receipt.failure is None
    assert seen[0]["error_code"].to_pylist() == ["bad", "bad"]
