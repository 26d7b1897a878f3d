"""All stages in a row, without a cluster, into an object store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from folder_reader import FolderReader
from object_store import serving

from hymotion_ray.config.ingest import GateConfig, ShardConfig, SplitConfig, WorkConfig
from hymotion_ray.engine.dataset.catalogue import Catalogue
from hymotion_ray.engine.dataset.convert import ConvertStage
from hymotion_ray.engine.dataset.gate import GateStage
from hymotion_ray.engine.dataset.job import _load
from hymotion_ray.engine.dataset.listing import FileList
from hymotion_ray.engine.dataset.manifest import commit_round, new_manifest, read_manifest
from hymotion_ray.engine.dataset.part import PartWriter, delete_scratch, done_chunks, read_index
from hymotion_ray.engine.dataset.read import ReadStage
from hymotion_ray.engine.dataset.shard import ShardStage, written_shard
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.shards import check_dataset, iter_shards
from hymotion_ray.motion.skeleton import generic_skeleton

OUT = "s3://motions/set"
SHARDS = ShardConfig(target_mb=0.2, row_group_mb=0.05)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with serving(monkeypatch, "motions"):
        yield


def test_a_round_on_an_object_store(bucket, sources, reader: FolderReader, tmp_path) -> None:
    store, skeleton = open_store(OUT), generic_skeleton()
    with FileList(tmp_path / "f") as files, Catalogue(tmp_path / "c") as catalogue:
        assert list(files.add_sources(reader, [str(sources)])) == []
        (chunks,) = files.rounds(WorkConfig(chunk_files=3), "s")
        assert done_chunks(store) == set()
        for chunk in chunks:
            writer = PartWriter(store, chunk.key, with_samples=True)
            clips = ReadStage(reader, 300)(chunk.files)
            writer.add(GateStage(GateConfig())(ConvertStage(skeleton, "unknown")(clips)))
            writer.close()
            catalogue.add_chunk(chunk.key, read_index(store, chunk.key))
        assert done_chunks(store) == {chunk.key for chunk in chunks}
        assert catalogue.drop_duplicates() == 0
        plans = list(catalogue.assign(SplitConfig(), SHARDS))
        written = [ShardStage(OUT, SHARDS)(plan) for plan in plans]
        assert [written_shard(store, plan.name).info for plan in plans] == [w.info for w in written]
        keys = [file.key for chunk in chunks for file in chunk.files]
        rows = [(key, *files.path_and_size(key)) for key in keys]
        manifest = new_manifest(skeleton, SplitConfig())
        manifest = commit_round(store, manifest, catalogue, rows, written, None)
    delete_scratch(store)
    assert store.list_files(".work") == []
    assert read_manifest(store) == manifest
    assert check_dataset(OUT) == []
    found = [c.clip_id for split in ("train", "val", "test") for c in iter_shards(OUT, split)]
    assert len(set(found)) == len(found) == 8
    with FileList(tmp_path / "f2") as files, Catalogue(tmp_path / "c2") as catalogue:
        _load(store, manifest, files, catalogue)
        list(files.add_sources(reader, [str(sources)]))
        assert (files.counts.new, files.counts.done) == (0, 8)
        assert sum(catalogue.num_accepted(key) for key in keys) == 8
