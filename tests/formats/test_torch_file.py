"""A torch file gives its tensors or a clear refusal, and never runs what it holds."""

from __future__ import annotations

import argparse
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from hymotion_ray.errors import CheckpointError, InputError
from hymotion_ray.formats.torch_file import read_torch_file, write_torch_file


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.pt"


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_and_numpy_scalars_come_back(path: Path, zipped: bool) -> None:
    content = {
        "weight": torch.arange(6.0).reshape(2, 3),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "epoch": np.int64(7),
        "loss": np.float32(0.5),
        "done": np.bool_(True),
        "nested": [{"a": (1, 2.5, None, "text")}],
    }
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    read = read_torch_file(path)
    assert torch.equal(read["weight"], content["weight"])
    assert read["half"].dtype == torch.bfloat16
    assert (read["epoch"], read["loss"], read["done"]) == (7, 0.5, True)
    assert read["nested"] == content["nested"]


def test_scalars_under_the_names_of_numpy_1_come_back(path: Path) -> None:
    torch.save({"epoch": np.int64(7)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert read_torch_file(path)["epoch"] == 7


def test_arrays_pass_only_when_asked_for(path: Path) -> None:
    torch.save([{"poses": np.ones((3, 4), np.float32)}], path)
    with pytest.raises(InputError, match=r"multiarray\._reconstruct"):
        read_torch_file(path)
    assert read_torch_file(path, arrays=True)[0]["poses"].shape == (3, 4)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_refused_and_does_not_run(path: Path, tmp_path: Path, zipped: bool) -> None:
    marker = tmp_path / "ran"
    torch.save({"a": Payload(marker)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"posix\.mkdir.*safetensors.*trust"):
        read_torch_file(path, error=CheckpointError)
    assert not marker.exists()


def test_bare_pickle_with_code_is_refused_and_does_not_run(path: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path.write_bytes(pickle.dumps(Payload(marker), protocol=2))
    with pytest.raises(InputError):
        read_torch_file(path)
    assert not marker.exists()


def test_other_classes_are_refused_by_name(path: Path) -> None:
    torch.save({"args": argparse.Namespace(lr=1)}, path)
    with pytest.raises(InputError, match=r"argparse\.Namespace"):
        read_torch_file(path)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_files_say_so(path: Path, keep: float, zipped: bool) -> None:
    torch.save({"a": torch.zeros(5000)}, path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(InputError, match="empty" if keep == 0 else "damaged or cut short"):
        read_torch_file(path)


def test_pointer_text_and_folder_are_told_apart(path: Path, tmp_path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")
    with pytest.raises(InputError, match="git lfs pull"):
        read_torch_file(path)
    path.write_text("hello, not a torch file")
    with pytest.raises(InputError, match="not a torch file"):
        read_torch_file(path)
    with pytest.raises(InputError, match="is a folder"):
        read_torch_file(tmp_path)
    with pytest.raises(InputError, match=r"missing.*holds file\.pt"):
        read_torch_file(tmp_path / "other.pt")


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_torch_file({"w": torch.arange(5.0), "epoch": 0}, tmp_path / folder / "latest.ckpt")
    first, second = (tmp_path / f / "latest.ckpt" for f in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
