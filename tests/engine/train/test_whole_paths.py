"""Workers stand in folders of their own, so what a job hands them holds no relative path."""

from __future__ import annotations

from pathlib import Path

import pytest

from hymotion_ray.config.training import TrainConfig
from hymotion_ray.engine.train.job import with_whole_paths


def test_local_paths_are_whole_and_other_places_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shards", "model", "qwen", "clip", "tiny"):
        (tmp_path / name).mkdir()
    here = with_whole_paths(
        TrainConfig(data="shards", out="run", init="model", llm_path="qwen", clip_path="clip")
    )
    for found in (here.data, here.out, here.init, here.llm_path, here.clip_path):
        assert found is not None
        assert Path(found).parent == tmp_path
    away = with_whole_paths(TrainConfig(data="s3://bucket/shards", out="run", init="tiny"))
    assert (away.data, away.init, away.llm_path) == ("s3://bucket/shards", "tiny", None)
