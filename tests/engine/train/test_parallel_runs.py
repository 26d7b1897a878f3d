"""Whole runs under the switches, through checkpoints on disk."""

from pathlib import Path

import pytest
from made_shards import small_dataset
from train_runs import assert_same_bits, checkpoint, debug_config, train_here

from hymotion_ray.api import load_model


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("data") / "shards")


@pytest.mark.parametrize(
    "setting",
    [
        "parallel.lora_rank=2",
        "parallel.precision=float16",
        'parallel.trainable=["final_layer.*"]',
    ],
)
def test_three_and_three_steps_equal_six(data: Path, tmp_path: Path, setting: str) -> None:
    whole, parts = tmp_path / "six", tmp_path / "parts"
    train_here(debug_config(data, whole, setting))
    train_here(debug_config(data, parts, setting, max_steps=3))
    train_here(debug_config(data, parts, setting))
    assert_same_bits(whole, parts, 6)
    model = load_model(str(checkpoint(whole, 6)))  # strictly: the published names alone
    assert model.config.network.feat_dim > 0
