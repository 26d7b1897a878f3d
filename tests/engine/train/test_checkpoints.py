"""Laws of checkpoints: whole or not at all, the staged values, the newest whole one is found."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from train_runs import checkpoint

from hymotion_ray.api import load_model
from hymotion_ray.config.training import SavingConfig
from hymotion_ray.engine.train import checkpoints as module
from hymotion_ray.engine.train.checkpoints import (
    Staged,
    all_checkpoints,
    clear_leftovers,
    fault_in,
    newest,
    read_checkpoint,
    state_of,
    step_of,
    write_checkpoint,
)
from hymotion_ray.engine.train.saver import Saver, read_best
from hymotion_ray.errors import CheckpointError, OutputError
from hymotion_ray.formats.models.checkpoint import Checkpoint, read_model


@pytest.fixture(scope="module")
def base(random_model: Path) -> Checkpoint:
    return read_model(random_model)


def staged(base: Checkpoint, step: int, value: float = 0.0) -> Staged:
    state = {name: tensor + value for name, tensor in state_of(base).items()}
    return Staged(
        step=step,
        weights={name: tensor + 1 for name, tensor in state.items()},
        mean=state,
        optimizer={"optimizer": {"moments": {"a": torch.ones(3)}}, "rng": torch.get_rng_state()},
        run={"progress": {"position": 4 * step, "bad_streak": 0, "rollbacks": 0}},
    )


def quiet(line: str) -> None:
    pass


def test_a_checkpoint_is_a_model_folder_and_gives_back_its_state(
    base: Checkpoint, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path, staged(base, 6), base)
    assert folder == checkpoint(tmp_path, 6)
    assert (tmp_path / "latest").read_text() == "checkpoints/step-00000006\n"
    latent = load_model(folder).sample(load_model(folder).encode(["a man"]), [])
    assert latent == []
    restored = read_checkpoint(folder)
    expected = staged(base, 6)
    assert restored.step == 6
    assert restored.run["progress"]["position"] == 24
    for name, tensor in expected.weights.items():
        assert torch.equal(restored.weights[name], tensor)
        assert torch.equal(restored.mean[name], expected.mean[name])
    assert torch.equal(restored.optimizer["optimizer"]["moments"]["a"], torch.ones(3))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("complete.json", "never finished"),
        ("state/optimizer.pt", "missing or cut short"),
        ("model.safetensors", "missing or cut short"),
    ],
)
def test_a_torn_checkpoint_is_skipped_with_a_warning(
    base: Checkpoint, tmp_path: Path, name: str, said: str
) -> None:
    for step in (3, 6):
        write_checkpoint(tmp_path, staged(base, step), base)
    torn = checkpoint(tmp_path, 6)
    if name == "complete.json":
        (torn / name).unlink()
    else:
        (torn / name).write_bytes((torn / name).read_bytes()[:-9])
    lines: list[str] = []
    assert newest(tmp_path, lines.append) == checkpoint(tmp_path, 3)
    assert len(lines) == 1
    assert said in lines[0]
    write_checkpoint(tmp_path, staged(base, 6), base)  # the same step again mends it
    assert newest(tmp_path, lines.append) == torn


def test_a_flipped_bit_is_found(base: Checkpoint, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, staged(base, 3), base)
    path = folder / "state/weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "damaged" in (fault_in(folder) or "")


def test_a_full_disk_leaves_no_checkpoint_and_the_one_before_counts(
    base: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, staged(base, 3), base)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_torch_file", full)
        with pytest.raises(OutputError, match="no space left"):
            write_checkpoint(tmp_path, staged(base, 6), base)
        saver = Saver(tmp_path, base, SavingConfig(keep=1), (lines := []).append)
        saver.save(staged(base, 6), None)
        with pytest.raises(OutputError):
            saver.finish()
    assert (tmp_path / "latest").read_text() == "checkpoints/step-00000003\n"
    assert "step 6 was not written" in lines[0]
    assert [step_of(f) for f in all_checkpoints(tmp_path)] == [3]
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000003"]
    saver.save(staged(base, 9), None)  # the next save is none the worse
    saver.finish()
    assert newest(tmp_path, quiet) == checkpoint(tmp_path, 9)


def test_what_is_written_in_the_background_is_the_staged_copy(
    base: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write = module.write_model

    def late(*arguments: object) -> None:
        gate.wait(30)
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "write_model", late)
    saver = Saver(tmp_path, base, SavingConfig(), quiet)
    content = staged(base, 3)
    saver.save(content, None)  # returns while the write still waits
    assert not (tmp_path / "latest").exists()
    gate.set()
    saver.finish()
    assert (tmp_path / "latest").exists()


def test_the_newest_and_the_best_stay(base: Checkpoint, tmp_path: Path) -> None:
    saver = Saver(tmp_path, base, SavingConfig(keep=2), quiet)
    for step, loss in ((1, 0.5), (2, 0.2), (3, 0.4), (4, 0.3), (5, 0.6)):
        saver.save(staged(base, step), loss)
    saver.finish()
    assert [step_of(f) for f in all_checkpoints(tmp_path)] == [2, 4, 5]
    assert read_best(tmp_path) == ("step-00000002", 0.2)
    shutil.rmtree(checkpoint(tmp_path, 2))
    assert read_best(tmp_path) is None


def test_another_schema_is_refused_with_advice(base: Checkpoint, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, staged(base, 3), base)
    path = folder / "state/run.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    with pytest.raises(CheckpointError, match="--init"):
        read_checkpoint(folder)


def test_equal_states_give_equal_bytes(base: Checkpoint, tmp_path: Path) -> None:
    content = staged(base, 3)
    one = write_checkpoint(tmp_path / "one", content, base)
    other = write_checkpoint(tmp_path / "other", dataclasses.replace(content), base)
    for path in one.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path


def test_what_killed_saves_leave_goes_and_checkpoints_stay(
    base: Checkpoint, tmp_path: Path
) -> None:
    whole = write_checkpoint(tmp_path, staged(base, 6), base)
    for name in (".step-00000009.0a.tmp", "..step-00000009.0a.tmp.1b.tmp"):
        (whole.parent / name).mkdir()
    for folder in (whole.parent, tmp_path):
        (folder / ".0123456789abcdef.tmp").write_bytes(b"half of a note")
    clear_leftovers(tmp_path)
    assert list(whole.parent.iterdir()) == [whole]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "latest"]
