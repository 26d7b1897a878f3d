"""Whole trainings on a real Ray: whatever dies, the weights are those of an unbroken run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click.testing
import pytest
from made_shards import small_dataset
from train_driver import TrainCommand
from train_runs import assert_same_bits, checkpoint, debug_config, train_here

from hymotion_ray.api import load_model
from hymotion_ray.cli import main
from hymotion_ray.engine.train.events import read_events

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("train") / "shards")


@pytest.fixture(scope="module")
def six(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unbroken run of 6 steps, without Ray."""
    out = tmp_path_factory.mktemp("six") / "out"
    assert train_here(debug_config(data, out)) == 6
    return out


@pytest.fixture
def make(ray: ModuleType, data: Path, tmp_path: Path) -> Callable[..., TrainCommand]:
    """A command of 6 steps on the session's Ray, in a folder of its own."""
    address = ray.get_runtime_context().gcs_address

    def command(*options: str) -> TrainCommand:
        options = ("--max-steps", "6", *options)
        return TrainCommand(data, tmp_path / "out", tmp_path / "faults", address, list(options))

    return command


@pytest.mark.slow
def test_a_killed_worker_starts_again_and_ray_data_reads_the_same_clips(
    make: Callable[..., TrainCommand], six: Path
) -> None:
    # Saved in the foreground, so that the checkpoint of step 3 is there when step 5 begins.
    settings = ("input.reader=ray", "input.readers=1", "saving.in_background=false")
    command = make(*(part for setting in settings for part in ("--set", setting)))
    command.plan("step:1:kill:step 5")
    code, output = command.run()
    assert code == 0, output
    assert_same_bits(command.out, six, 6)
    starts = [e["step"] for e in read_events(command.out) if e["kind"] == "start"]
    assert starts == [0, 3]
    assert "training from step 3" in output
    model = load_model(checkpoint(command.out, 6))
    assert model.encode(["a person walks"]).num_tokens > 0
    assert not (command.out / ".work").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["save:2", "save-files:2", "save-complete:2", "save-named:2", "save-done:1"]
)
def test_a_worker_killed_at_a_point_of_a_save(
    make: Callable[..., TrainCommand], six: Path, point: str
) -> None:
    command = make()
    command.plan(f"{point}:kill")
    code, output = command.run()
    assert code == 0, output
    assert_same_bits(command.out, six, 6)


@pytest.mark.slow
def test_a_driver_killed_mid_way_is_followed_by_the_same_command(
    make: Callable[..., TrainCommand], six: Path
) -> None:
    command = make()
    command.plan("step:1:hang:step 5")
    process = command.start()
    command.wait_for("step", "step 5")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    command.plan()
    code, output = command.run()
    assert code == 0, output
    assert_same_bits(command.out, six, 6)


def test_checks_come_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> click.testing.Result:
        return click.testing.CliRunner().invoke(main, ["train", *arguments])

    here = ["--data", str(data), "--out", str(tmp_path / "out")]
    shown = run(*here, "--preset", "debug", "--workers", "2-4", "--dry-run")
    assert shown.exit_code == 0, shown.output
    described = json.loads(shown.stdout)
    assert described["clips"] == {"train": 11, "val": 3, "test": 0}
    assert described["config"]["workers"]["num_workers"] == "2-4"
    for arguments, said in (
        (["--data", str(tmp_path / "none"), "--out", str(tmp_path / "out")], "no manifest.json"),
        ([*here, "--set", "optimizer.learning_rates=1"], "did you mean 'learning_rate'"),
        ([*here, "--preset", "finetune"], "--init names none"),
        ([*here, "--init", str(tmp_path / "none")], "no model"),
        ([*here, "--workers", "4-2"], "a range such as 2-8"),
        (["--data", str(data), "--out", str(data)], "holds no config.json of a training run"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 2, refused.output
        assert said in refused.output
    assert not (tmp_path / "out").exists()
