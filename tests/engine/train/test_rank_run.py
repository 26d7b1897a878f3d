"""Laws of a run, without Ray: exact to resume, the same at any number of ranks, proof to NaN."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from made_shards import moving_clip, small_dataset, spoiled, write_shards
from train_runs import (
    assert_same_bits,
    assert_same_weights,
    checkpoint,
    debug_config,
    prepare,
    tensors,
    train_forked,
    train_here,
    train_ranks,
)

from hymotion_ray.api import load_model
from hymotion_ray.engine import faults
from hymotion_ray.engine.train.checkpoints import all_checkpoints, fault_in, step_of
from hymotion_ray.engine.train.events import read_events
from hymotion_ray.engine.train.metrics_file import read_metrics
from hymotion_ray.engine.train.rank_run import RankJob, RankRun
from hymotion_ray.errors import OutputError, TrainingError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def six(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unbroken run of 6 steps: 24 clips, over two epochs of 11."""
    out = tmp_path_factory.mktemp("six")
    assert train_here(debug_config(data, out)) == 6
    return out


@pytest.fixture
def fault_plan(tmp_path: Path) -> Iterator[Callable[..., None]]:
    folder = tmp_path / "faults"
    folder.mkdir()

    def plan(*lines: str) -> None:
        (folder / "plan").write_text("\n".join(lines))
        faults.use(str(folder))

    yield plan
    faults.use(None)


def said(out: Path) -> str:
    return "\n".join(e["text"] for e in read_events(out) if e["kind"] == "say")


def test_three_and_three_steps_equal_six(data: Path, six: Path, tmp_path: Path) -> None:
    assert train_here(debug_config(data, tmp_path, max_steps=3)) == 3
    assert train_here(debug_config(data, tmp_path, max_steps=6)) == 6
    assert_same_bits(tmp_path, six, 6)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("setting", ["precision=float16", "lora_rank=2"])
def test_scaled_and_adapted_runs_resume_exactly_too(
    data: Path, tmp_path: Path, setting: str
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out, steps in ((whole, 4), (parts, 2), (parts, 4)):
        train_here(
            debug_config(data, out, f"parallel.{setting}", "saving.every_steps=2", max_steps=steps)
        )
    assert_same_bits(parts, whole, 4)
    assert load_model(checkpoint(parts, 4)).config.name == "debug"


@pytest.mark.parametrize(
    "fault", ["step:5:kill", "save-files:2:kill", "save-complete:1:kill", "rename:1:kill:latest"]
)
def test_a_killed_process_leaves_what_the_next_one_goes_on_from(
    data: Path, six: Path, tmp_path: Path, fault: str
) -> None:
    (tmp_path / "plan").write_text(fault)
    config = debug_config(data, tmp_path / "out")
    assert train_forked(config, tmp_path) == -signal.SIGKILL
    assert train_forked(config, tmp_path) == 0
    assert_same_bits(tmp_path / "out", six, 6)
    names = os.listdir(tmp_path / "out/checkpoints")
    assert sorted(n for n in names if n != "best.json") == ["step-00000003", "step-00000006"]


@pytest.mark.slow
def test_chosen_ranks_are_profiled(data: Path, tmp_path: Path) -> None:
    train_here(debug_config(data, tmp_path, "profile_ranks=[0]"))
    assert len(list((tmp_path / "profile").glob("rank0*.json"))) == 1


def test_a_stop_between_checkpoints_goes_back_to_the_last_one(
    data: Path, six: Path, tmp_path: Path, fault_plan: Callable[..., None]
) -> None:
    out = tmp_path / "out"
    fault_plan("step:5:raise", "save-files:2:raise")
    with pytest.raises(RuntimeError, match="on purpose"):
        train_here(debug_config(data, out))
    assert [step_of(f) for f in all_checkpoints(out)] == [3]
    config = debug_config(data, out, "saving.in_background=false")
    with pytest.raises(RuntimeError, match="save-files"):
        train_here(config)
    assert [step_of(f) for f in all_checkpoints(out)] == [3]
    assert train_here(config) == 6
    assert_same_bits(out, six, 6)


def test_checkpoints_are_models_and_their_mean_is_not_the_raw_weights(six: Path) -> None:
    model = load_model(checkpoint(six, 6))
    assert model.config.name == "debug"
    held = tensors(six, 6)
    bias = "final_layer.linear.bias"
    assert not torch.equal(held[f"mean/motion_transformer.{bias}"], held[f"raw/network.{bias}"])
    earlier = tensors(six, 3)
    raw = [name for name in held if name.startswith("raw/")]
    assert sum(not torch.equal(held[name], earlier[name]) for name in raw) > 10


def test_a_start_with_other_settings_is_refused_and_more_steps_are_not(
    data: Path, six: Path
) -> None:
    config = debug_config(data, six, "optimizer.learning_rate=0.5", "input.window=3")
    with pytest.raises(OutputError) as refused:
        prepare(config)
    assert "optimizer.learning_rate is 0.001 there, 0.5 here" in str(refused.value)
    assert "input.window is 64 there, 3 here" in str(refused.value)
    with pytest.raises(OutputError, match="global_batch is 4 there, 8 here"):
        prepare(dataclasses.replace(debug_config(data, six), global_batch=8))
    prepare(debug_config(data, six, "log_every=7", "micro_batch=2", max_steps=9))


def test_accumulation_changes_rounding_only(data: Path, six: Path, tmp_path: Path) -> None:
    train_here(debug_config(data, tmp_path, "micro_batch=1"))
    assert_same_weights(tmp_path, six, 6)


def test_a_clip_that_is_not_finite_is_named_and_left_out(tmp_path: Path) -> None:
    clips = [moving_clip(n) for n in range(6)]
    data = write_shards(tmp_path / "data", [[spoiled(clips[0]), *clips[1:]]])
    out = tmp_path / "out"
    assert train_here(debug_config(data, out)) == 6
    assert said(out).count("clip 'clip-0000' is not finite") == 1
    assert all(torch.isfinite(t).all() for t in tensors(out, 6).values() if t.is_floating_point())


class Poisoned(RankRun):
    """A run whose clips blow up from a position on: finite in the shard, not in the loss."""

    def __init__(self, job: RankJob, steps: range) -> None:
        super().__init__(job, torch.device("cpu"))
        self.steps = steps

    def run(self, start_feed: Any = None) -> int:
        from hymotion_ray.engine.train.loader import BatchLoader

        def feed(spec: Any, position: int, num_steps: int) -> Iterator[Any]:
            loader, batch = BatchLoader(spec), self.config.global_batch
            for number in range(num_steps):
                at = position + number * batch
                batches = loader.load(at)
                if at // batch in self.steps:
                    batches = [b._replace(x=b.x * float("inf")) for b in batches]
                yield batches

        return super().run(feed)


def test_one_bad_step_is_skipped_and_its_clips_are_named(data: Path, tmp_path: Path) -> None:
    assert Poisoned(prepare(debug_config(data, tmp_path)), range(3, 4)).run() == 6
    assert "step 4: skipped, the loss is not finite for clip 'clip-" in said(tmp_path)


def test_bad_steps_in_a_row_go_back_to_the_checkpoint_and_then_on(
    data: Path, tmp_path: Path
) -> None:
    config = debug_config(data, tmp_path, "failures.max_bad_steps=2", max_steps=8)
    assert Poisoned(prepare(config), range(4, 6)).run() == 8
    assert "the weights go back to step 3, the data goes on" in said(tmp_path)
    held = tensors(tmp_path, 8)
    assert all(torch.isfinite(t).all() for t in held.values() if t.is_floating_point())


def test_numbers_that_stay_bad_end_the_run_with_whole_checkpoints(
    data: Path, tmp_path: Path
) -> None:
    config = debug_config(data, tmp_path, "failures.max_bad_steps=2", max_steps=9)
    with pytest.raises(TrainingError, match="again after going back"):
        Poisoned(prepare(config), range(3, 100)).run()
    assert [step_of(f) for f in all_checkpoints(tmp_path)] == [3, 6]
    assert all(torch.isfinite(t).all() for t in tensors(tmp_path, 6).values())


def test_pretrained_weights_report_a_low_loss_at_step_0_and_strangers_a_warning(
    data: Path, random_model: Path, tmp_path: Path
) -> None:
    config = debug_config(data, tmp_path / "a", max_steps=1)
    train_here(dataclasses.replace(config, init=str(random_model)))
    assert "are no better than predicting nothing" in said(tmp_path / "a")
    own = debug_config(data, tmp_path / "b", "optimizer.learning_rate=0.01", max_steps=60)
    own = dataclasses.replace(own, saving=dataclasses.replace(own.saving, every_steps=60))
    train_here(own)
    tuned = debug_config(data, tmp_path / "c", max_steps=1)
    train_here(dataclasses.replace(tuned, init=str(checkpoint(tmp_path / "b", 60))))
    words = said(tmp_path / "c")
    assert "warning" not in words
    loss, nothing = (float(part.split()[0]) for part in words.split("loss ")[1].split("("))
    assert loss < 0.9 * nothing


# --- several ranks ------------------------------------------------------------------------------


def test_two_ranks_equal_one_and_their_checkpoint_goes_on_with_one(
    data: Path, six: Path, tmp_path: Path
) -> None:
    job = prepare(debug_config(data, tmp_path, "micro_batch=1", max_steps=3))
    assert train_ranks(job, 2) == [0, 0]
    row = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert {"loss/rank0", "loss/rank1", "step_s/rank1", "straggler"} <= row.keys()
    assert train_here(debug_config(data, tmp_path, max_steps=6)) == 6
    assert_same_weights(tmp_path, six, 6)


@pytest.mark.slow
def test_uneven_ranks_and_sharded_ones_equal_one(data: Path, six: Path, tmp_path: Path) -> None:
    for name, assignments in (
        ("uneven", ["workers.num_workers=2", "workers.shares=[3,1]"]),
        ("zero3", ["parallel.strategy=zero3"]),
    ):
        job = prepare(debug_config(data, tmp_path / name, *assignments))
        assert train_ranks(job, 2) == [0, 0]
        assert_same_weights(tmp_path / name, six, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "num_whole"),
    [
        ("step:1:stop:rank 1 step 5", 1),
        ("step:1:kill:rank 1 step 5", 1),
        ("save:1:kill:rank 1 step 3", 0),  # before the ranks' parts are gathered
    ],
)
def test_a_rank_that_hangs_or_dies_is_named_and_leaves_no_half_checkpoint(
    data: Path, six: Path, tmp_path: Path, fault: str, num_whole: int
) -> None:
    folder = tmp_path / "faults"
    folder.mkdir()
    (folder / "plan").write_text(fault)
    config = debug_config(data, tmp_path / "out", "failures.collective_timeout_s=20")
    assert train_ranks(prepare(config), 2, folder) == [3, -signal.SIGKILL]
    assert "rank 1" in said(tmp_path / "out")
    assert [fault_in(folder) for folder in all_checkpoints(tmp_path / "out")] == [None] * num_whole
    assert train_ranks(prepare(config), 2) == [0, 0]
    assert_same_weights(tmp_path / "out", six, 6)
