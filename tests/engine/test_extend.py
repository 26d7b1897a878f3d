"""Further formats of finished clips: written beside them, a damaged clip failing alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import hymotion_ray as hm
from hymotion_ray.config.render import RenderConfig
from hymotion_ray.engine.manifest import SCHEMA, read_rows, write_part
from hymotion_ray.engine.render.extend import ExtendStage, Extension
from hymotion_ray.engine.render.model_info import ModelInfo, default_grid
from hymotion_ray.engine.stage import Chunk
from hymotion_ray.engine.worklist import Worklist, target_key
from hymotion_ray.formats.atomic import Store, open_store

CLIPS = {"a": "motions/shards/a_s0.npz", "b": "motions/b_s0.npz", "c": "motions/c_s0.npz"}


@pytest.fixture
def store(random_model: Path, tmp_path: Path) -> Store:
    """Three finished clips in one manifest part; the second one's file is damaged."""
    store = open_store(tmp_path / "out")
    latent = torch.randn(20, 201, generator=torch.Generator().manual_seed(0))
    motion = hm.load_model(random_model).decode(latent)
    rows = []
    for name, file in CLIPS.items():
        (tmp_path / "out" / file).parent.mkdir(parents=True, exist_ok=True)
        hm.save_motion(motion, tmp_path / "out" / file)
        own = {"id": name, "group": "", "stem": f"{name}_s0", "status": "done", "file": file}
        rows.append(dict.fromkeys(SCHEMA.names) | own | {"formats": "npz"})
    (tmp_path / "out" / CLIPS["b"]).write_bytes(b"no zip")
    write_part(store, "k", rows)
    return store


def test_a_damaged_clip_fails_alone_and_the_manifest_says_what_is_there(
    store: Store, random_model: Path, tmp_path: Path
) -> None:
    config = RenderConfig(prompts=("unused",), model=str(random_model), out=store.root)
    info = ModelInfo.read(config)
    grid = default_grid(config.resources, has_gpus=False)
    settings = info.stage_settings(config, grid, out=store.root, hashed_folders=False)
    stage = ExtendStage(dataclasses.replace(settings, formats=("npz", "bvh")))
    stage.setup()
    with Worklist(tmp_path / "w.sqlite") as worklist:
        worklist.add_known((target_key("", f"{n}_s0"), n.encode(), "npz", 1) for n in CLIPS)
        worklist.settle_known()
        for name in CLIPS:
            key = target_key("", f"{name}_s0")
            assert worklist.add_clip(key, name.encode(), 0, ("npz", "bvh")) == "export"
        extension = Extension(store, worklist)
        (chunk,) = extension.chunks()
        done, failed, error = extension.take(stage(chunk).items)
    assert (done, failed) == (2, 1)
    assert error is not None
    assert error.startswith("motions/b_s0.npz: ")
    written = {p.name for p in Path(store.root).rglob("*.bvh")}
    assert written == {"a_s0.bvh", "c_s0.bvh"}
    (part,) = store.list_files("manifest")
    assert [row["formats"] for row in read_rows(store, part)] == ["npz,bvh", "npz", "npz,bvh"]


def test_what_was_written_before_an_early_end_is_noted(store: Store, tmp_path: Path) -> None:
    with Worklist(tmp_path / "w.sqlite") as worklist:
        worklist.add_known((target_key("", f"{n}_s0"), n.encode(), "npz", 1) for n in CLIPS)
        worklist.settle_known()
        for name in CLIPS:
            worklist.add_clip(target_key("", f"{name}_s0"), name.encode(), 0, ("npz", "glb"))
        extension = Extension(store, worklist)
        (chunk,) = extension.chunks()
        first: pa.Table = Chunk(key="half", items=chunk.items.slice(0, 1)).items
        extension.take(first)
        extension.close()
    (part,) = store.list_files("manifest")
    assert [row["formats"] for row in read_rows(store, part)] == ["npz,glb", "npz", "npz"]
