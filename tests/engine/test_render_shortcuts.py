"""Approximate modes of a render job: computed as asked, named in every output, never mixed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import hymotion_ray as hm
from hymotion_ray.config import SamplingConfig
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.manifest import read_batches
from hymotion_ray.engine.render.decode import DecodeStage
from hymotion_ray.engine.render.encode import EncodeStage
from hymotion_ray.engine.render.export import ExportStage
from hymotion_ray.engine.render.folder import Folder, folder_identity, require_same
from hymotion_ray.engine.render.model_info import ModelInfo, default_grid
from hymotion_ray.engine.render.sample import SampleStage
from hymotion_ray.engine.serve.schema import MotionRequest
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.work_chunks import ITEMS
from hymotion_ray.errors import ConfigError, OutputError
from hymotion_ray.formats.atomic import open_store

MODES = {
    "midpoint": ({"method": "midpoint"}, "midpoint solver"),
    "interval": ({"guidance_interval": (0.1, 0.8)}, "guidance for t from 0.1 to 0.8"),
    "both": (
        {"guidance_interval": (0.3, 1.0), "null_every": 2},
        "guidance for t from 0.3 to 1.0; null branch anew every 2 steps",
    ),
}


def job(model: Path, out: Path, **settings: object) -> RenderConfig:
    return RenderConfig(prompts=("unused",), model=str(model), out=str(out), **settings)  # type: ignore[arg-type]


def rendered(config: RenderConfig) -> tuple[hm.Motion, dict[str, object]]:
    """The one clip of a job, as its stages write it, and its manifest row."""
    info = ModelInfo.read(config)
    text = "a person walks"
    grid = dataclasses.replace(default_grid(config.resources, has_gpus=False), rows=2)
    item = {
        "identity": "00", "text": text, "num_frames": 30, "noise_seeds": [3], "num_steps": 4,
        "guidance_scale": 2.0, "num_tokens": info.token_counter.count_tokens([text])[0],
        "targets": [{"id": "w", "group": "", "seed": 3, "stem": "w_s3", "attempt": 1}],
    }  # fmt: skip
    settings = info.stage_settings(config, grid, out=config.out, hashed_folders=False)
    chunk = Chunk(key="k", items=pa.Table.from_pylist([item], schema=ITEMS))
    for stage in (
        EncodeStage(settings), SampleStage(settings), DecodeStage(info.decoder),
        ExportStage(settings),
    ):  # fmt: skip
        stage.setup()
        chunk = stage(chunk)
    (batch,) = read_batches(open_store(config.out))
    return hm.load_motion(Path(config.out) / "motions" / "w_s3.npz"), batch.to_pylist()[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_computed_and_named_in_the_file_and_the_manifest(
    mode: str, random_model: Path, tmp_path: Path
) -> None:
    settings, words = MODES[mode]
    motion, row = rendered(job(random_model, tmp_path / "out", **settings))
    assert motion.meta["approximation"] == words
    assert row["degradations"] == f"approximate: {words}"
    model = hm.load_model(str(random_model))
    condition = model.encode("a person walks")
    sampling = SamplingConfig(num_steps=4, guidance_scale=2.0, **settings)  # type: ignore[arg-type]
    (latent,) = model.new_sampler(dataclasses.replace(model.sampler.grid, rows=2)).sample(
        condition.context, condition.vector, condition.length, [hm.Row(0, 30, 3)], sampling
    )
    assert torch.equal(motion.rot6d, model.decode(latent).rot6d)


def test_an_exact_clip_carries_no_such_word(random_model: Path, tmp_path: Path) -> None:
    motion, row = rendered(job(random_model, tmp_path / "out"))
    assert "approximation" not in motion.meta
    assert row["degradations"] == ""


def test_no_folder_and_no_identity_mixes_modes(random_model: Path, tmp_path: Path) -> None:
    settings = [{}, *(given for given, _ in MODES.values()), {"null_every": 2}]
    configs = [job(random_model, tmp_path, **given) for given in settings]
    folders = [ModelInfo.read(config).folder_settings(config) for config in configs]
    assert len({folder_identity(folder) for folder in folders}) == len(folders)
    held = Folder(settings=folders[0], grid=default_grid(configs[0].resources, has_gpus=False))
    store = open_store(str(tmp_path))
    require_same(store, held, folders[0])
    with pytest.raises(OutputError, match=r"shortcuts is None there, \['null branch anew every 2"):
        require_same(store, held, folders[-1])


def test_a_mode_that_is_the_exact_way_belongs_to_its_folder(
    random_model: Path, tmp_path: Path
) -> None:
    exact = job(random_model, tmp_path)
    same = job(random_model, tmp_path, guidance_interval=(0.0, 1.0), null_every=1)
    info = ModelInfo.read(same)
    assert info.folder_settings(same) == ModelInfo.read(exact).folder_settings(exact)
    assert info.approximation(same) == ""


def test_without_guidance_there_is_nothing_to_save(random_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"guidance_scale is 1\.0; allowed: above 1 with"):
        job(random_model, tmp_path, guidance_scale=1.0, null_every=2)


@pytest.mark.parametrize("field", ["guidance_interval", "null_every", "method", "precision"])
def test_requests_are_served_exactly_or_not_at_all(field: str) -> None:
    """What the contract of serving does not name is an unknown field, which is answered 422."""
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        MotionRequest.model_validate({"text": "a person walks", field: 2})
