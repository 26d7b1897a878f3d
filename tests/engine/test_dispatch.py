"""Chunks get through real processes once each, whatever those processes do."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import standin
from ray import cloudpickle
from standin import Pass, fixed, make_chunks, one_step, two_steps

from hymotion_ray.engine import faults
from hymotion_ray.engine.dispatch import Dispatcher
from hymotion_ray.engine.pool import Step
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.errors import ClusterError, OutputError

cloudpickle.register_pickle_by_value(standin)
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray")]


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Path]:
    """A folder of faults in use; write its `plan`."""
    folder = tmp_path / "faults"
    folder.mkdir()
    faults.use(str(folder))
    yield folder
    faults.use(None)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def run(dispatcher: Dispatcher, num_items: int = 12, size: int = 4) -> Counter[str]:
    """How often each item came out."""
    seen: Counter[str] = Counter()
    for receipt in dispatcher.run(make_chunks(num_items, size)):
        seen.update(receipt.finished["text"].to_pylist())
    return seen


def once(num_items: int = 12) -> Counter[str]:
    return Counter(f"<{n}>" for n in range(num_items))


def written(out: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in out.iterdir()}


def arrivals(plan: Path, point: str) -> list[str]:
    """Lines of the faults' log for one point."""
    lines = (plan / "log").read_text().splitlines()
    return [line for line in lines if line.startswith(f"{point}\t")]


def ends(pid: int) -> bool:
    """Whether a process is gone within some seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def quiet(line: str) -> None:
    pass


def test_every_item_goes_through_all_steps_once(out: Path) -> None:
    dispatcher = Dispatcher(two_steps(out, workers=2), quiet)
    assert run(dispatcher, 40, 3) == once(40)
    assert set(written(out).values()) == {"done"}
    assert dispatcher.workers == []


def test_nothing_to_do_starts_no_process(out: Path) -> None:
    assert run(Dispatcher(two_steps(out), quiet), 0) == Counter()


def test_suspects_that_are_known_late_come_last(out: Path) -> None:
    known: list[Chunk] = []
    first, second, third = make_chunks(9, 3)

    def chunks() -> Iterator[Chunk]:
        known.append(third)
        yield from (first, second)

    seen = [
        receipt.finished["text"][0].as_py()
        for receipt in Dispatcher(one_step(out), quiet).run(chunks(), iter(known))
    ]
    assert seen == ["<0>", "<3>", "<6>"]


def test_a_killed_process_loses_nothing(out: Path, plan: Path) -> None:
    (plan / "plan").write_text("write:2:kill\npass:1:kill\n")
    dispatcher = Dispatcher(two_steps(out), quiet)
    assert run(dispatcher) == once()
    assert dispatcher.mishaps.killed == 2
    assert set(written(out).values()) == {"done"}


def test_an_item_that_kills_its_process_is_failed_alone(out: Path, plan: Path) -> None:
    (plan / "plan").write_text("pass:*:kill:<5>\n")
    suspects = []
    dispatcher = Dispatcher(one_step(out, workers=2), quiet, on_suspect=suspects.append)
    assert run(dispatcher) == once()
    assert written(out) == {str(n): "poison" if n == 5 else "done" for n in range(12)}
    assert dispatcher.mishaps.killed == 5
    assert {c for piece in suspects for c in piece.chunk.column("text")} == {
        "<4>", "<5>", "<6>", "<7>",
    }  # fmt: skip


@pytest.mark.parametrize("action", ["raise", "exit"])
def test_an_item_that_a_stage_raises_for_is_failed_alone(
    out: Path, plan: Path, action: str
) -> None:
    (plan / "plan").write_text(f"pass:*:{action}:<5>\n")
    dispatcher = Dispatcher(two_steps(out), quiet)
    assert run(dispatcher) == once()
    assert written(out) == {str(n): "pass_failed" if n == 5 else "done" for n in range(12)}
    assert dispatcher.mishaps.killed == 0


@pytest.mark.slow
def test_a_process_may_load_longer_than_the_watchdog_waits(out: Path) -> None:
    class SlowToLoad(Pass):
        def setup(self) -> None:
            time.sleep(6)

    steps = [Step(name="work", stages=(SlowToLoad(),), size=fixed(1))]
    dispatcher = Dispatcher(steps, quiet, stall_s=3.0)
    assert run(dispatcher) == once()
    assert [w.name for _, w in dispatcher.ended] == ["work-1"]


@pytest.mark.parametrize("action", ["hang", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_process_that_hangs_is_replaced(out: Path, plan: Path, action: str) -> None:
    (plan / "plan").write_text(f"write:2:{action}\n")
    dispatcher = Dispatcher(one_step(out), quiet, stall_s=5.0)
    assert run(dispatcher) == once()
    assert dispatcher.mishaps.hung == 1
    (hung,) = [line.split("\t")[1] for line in arrivals(plan, "write")][1:2]
    assert ends(int(hung))
    assert set(written(out).values()) == {"done"}


def test_a_process_that_lost_its_gpu_is_replaced(out: Path, tmp_path: Path) -> None:
    class Faulty(Pass):
        def __call__(self, chunk):
            if "<5>" in chunk.column("text") and not (tmp_path / "struck").exists():
                (tmp_path / "struck").touch()
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return super().__call__(chunk)

    steps = [Step(name="work", stages=(Faulty(),), size=fixed(1))]
    dispatcher = Dispatcher(steps, quiet)
    assert run(dispatcher) == once()
    assert dispatcher.mishaps.counts() == {"killed": 1, "hung": 0, "lost_with_node": 0}


def test_a_full_disk_ends_the_run(out: Path, plan: Path) -> None:
    class Full(Pass):
        def __call__(self, chunk):
            raise OutputError("the disk is full")

    steps = [Step(name="work", stages=(Full(),), size=fixed(1))]
    with pytest.raises(OutputError, match="the disk is full"):
        run(Dispatcher(steps, quiet))


def test_a_step_that_cannot_start_is_named(out: Path, plan: Path) -> None:
    (plan / "plan").write_text("setup-write:*:raise\n")
    with pytest.raises(ClusterError, match=r"no work process could start.*made on purpose"):
        run(Dispatcher(one_step(out), quiet))


def test_one_set_up_that_fails_is_tried_again(out: Path, plan: Path) -> None:
    (plan / "plan").write_text("setup-write:1:kill\n")
    assert run(Dispatcher(one_step(out), quiet)) == once()


def test_a_step_without_a_place_is_named(out: Path) -> None:
    steps = [Step(name="work", stages=(Pass(),), size=fixed(1), num_gpus=7)]
    with pytest.raises(ClusterError, match=r"wait for a work process.*7 GPU"):
        run(Dispatcher(steps, quiet, stall_s=1.0))


def test_leaving_early_ends_the_processes(out: Path) -> None:
    dispatcher = Dispatcher(two_steps(out, seconds=0.2), quiet)
    receipts = dispatcher.run(make_chunks(40, 2))
    next(receipts)
    pids = [w.hello.pid for w in dispatcher.workers if w.hello]
    receipts.close()
    assert pids
    assert all(ends(pid) for pid in pids)
