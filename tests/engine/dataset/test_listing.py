"""The list of files: every file once, known ones left out, names that clash told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from hymotion_ray.config.ingest import WorkConfig
from hymotion_ray.engine.dataset.listing import FileList, WorkChunk
from hymotion_ray.engine.dataset.reader import CollectionReader, expand, read_chunk_keys
from hymotion_ray.errors import ConfigError, InputError
from hymotion_ray.formats.sources import SourceReject


@pytest.fixture
def listed(tmp_path, reader):
    def make(*roots, known=()):
        number = len(list(tmp_path.glob("list*.sqlite")))
        files = FileList(tmp_path / f"list{number}.sqlite")
        files.add_known(known)
        rejects = list(files.add_sources(reader, [str(r) for r in roots]))
        return files, rejects

    return make


def keys(files: FileList, **work) -> list[list[str]]:
    chunks = [c for r in files.rounds(WorkConfig(**work), "s") for c in r]
    return [[file.key for file in chunk.files] for chunk in chunks]


def test_every_file_is_in_one_chunk_in_the_same_order_each_time(listed, sources):
    files, rejects = listed(sources)
    found = keys(files, chunk_files=3)
    assert rejects == []
    assert [len(chunk) for chunk in found] == [3, 3, 2]
    flat = sorted(key for chunk in found for key in chunk)
    assert flat == sorted(f"moves/set{k % 2}/take{k}.clip" for k in range(8))
    assert keys(listed(sources)[0], chunk_files=3) == found
    assert [key for chunk in found for key in chunk] != flat  # neighbours are scattered


def test_a_dataset_among_its_own_sources_is_none_of_them(tmp_path, sources, reader):
    out = sources / "set1"
    with FileList(tmp_path / "own.sqlite") as files:
        assert list(files.add_sources(reader, [str(sources)], str(out))) == []
        assert {key.split("/")[1] for chunk in keys(files) for key in chunk} == {"set0"}
        assert files.counts.files == 4


def test_chunks_and_rounds_keep_to_their_sizes(listed, sources):
    files, _ = listed(sources)
    rounds = list(files.rounds(WorkConfig(chunk_files=2, round_files=4), "s"))
    assert [len(r) for r in rounds] == [2, 2]
    assert keys(files, chunk_mb=1.5e-6) == keys(files, chunk_files=1)
    rounds = list(files.rounds(WorkConfig(chunk_files=1, round_mb=2.5e-6), "s"))
    assert [len(r) for r in rounds] == [2, 2, 2, 2]


def test_a_chunks_key_follows_its_files_and_the_settings(listed, sources):
    def first(settings: str) -> str:
        files, _ = listed(sources)
        return next(files.rounds(WorkConfig(), settings))[0].key

    assert first("a") == first("a")
    assert first("a") != first("b")
    before = first("a")
    (sources / "set0" / "take0.clip").write_text("100")
    assert first("a") != before


def test_a_chunk_travels_as_text(listed, sources):
    files, _ = listed(sources)
    chunk = next(files.rounds(WorkConfig(), "s"))[0]
    assert WorkChunk.from_json(chunk.key, chunk.to_json()) == chunk


def test_known_files_are_left_out_wherever_the_folder_lies(listed, sources, tmp_path):
    files, _ = listed(sources)
    known = [(key, size, path) for key, path, size, _ in files.listed()]
    assert keys(listed(sources, known=known)[0]) == []
    moved = tmp_path / "elsewhere" / "moves"
    shutil.copytree(sources, moved)
    again, rejects = listed(moved, known=known)
    assert (keys(again), rejects, again.counts.moved, again.counts.done) == ([], [], 8, 8)
    (sources / "set0" / "new.clip").write_text("9")
    assert keys(listed(sources, known=known)[0]) == [["moves/set0/new.clip"]]


def test_a_file_that_changed_is_told_once_and_not_read(listed, sources):
    files, _ = listed(sources)
    known = [(key, size, path) for key, path, size, _ in files.listed()]
    (sources / "set0" / "take0.clip").write_text("0 77")
    again, (reject,) = listed(sources, known=known)
    assert reject.code == "name_taken"
    assert "moves/set0/take0.clip" in reject.message
    assert keys(again) == []
    known.append((reject.file, *again.path_and_size(reject.file)[::-1]))
    third, rejects = listed(sources, known=known)
    assert (rejects, third.counts.done) == ([], 8)


def test_two_sources_of_one_name_clash_file_by_file(listed, sources, tmp_path):
    other = tmp_path / "b" / "moves" / "set0"
    other.mkdir(parents=True)
    (other / "take0.clip").write_text("50")
    (other / "fresh.clip").write_text("51")
    files, (reject,) = listed(sources, tmp_path / "b" / "moves")
    assert reject.code == "name_taken"
    assert reject.name == "moves/set0/take0.clip"
    assert "moves/set0/fresh.clip" in keys(files)[0]


def test_a_file_named_twice_is_read_once_alone_or_in_its_folder(listed, sources):
    folder = sources / "set0"
    files, rejects = listed(folder, folder / "take0.clip", folder)
    assert rejects == []
    assert files.counts.files == 4
    assert files.counts.twice == 5
    assert keys(files)[0].count("set0/take0.clip") == 1


def test_globs_are_expanded_and_a_missing_source_is_an_error(sources):
    found = expand([str(sources / "set*"), "no/such/*"])
    assert found == [str(sources / "set0"), str(sources / "set1"), "no/such/*"]
    with pytest.raises(InputError, match="no/such"):
        list(CollectionReader().list("no/such/*"))


def test_names_that_are_no_utf8_can_be_kept(listed, tmp_path):
    folder = Path(str(tmp_path / "odd"))
    folder.mkdir()
    (folder / "caf\udce9.clip").write_text("1")
    files, _ = listed(folder)
    ((key,),) = keys(files)
    assert key == "odd/caf\\udce9.clip"
    assert WorkChunk.from_json("k", next(files.rounds(WorkConfig(), "s"))[0].to_json()).files


def test_chunk_files_of_other_names_are_read_with_a_key_map(tmp_path):
    clips = [{"my_pose": torch.zeros(40, 66), "my_trans": torch.zeros(40, 3), "rate": 30.0}]
    torch.save(clips, tmp_path / "chunk.pt")
    keys = tmp_path / "keys.yaml"
    keys.write_text("poses: [my_pose]\ntrans: [my_trans]\nfps: [rate]\nup: y\n")
    (file,) = [f for f in CollectionReader().list(str(tmp_path)) if f.kind == "torch"]
    (refused,) = CollectionReader().read(file)
    assert isinstance(refused, SourceReject)
    (clip,) = CollectionReader(chunk_keys=read_chunk_keys(str(keys))).read(file)
    assert clip.num_frames == 40
    keys.write_text("posess: [a]")
    with pytest.raises(ConfigError, match="poses"):
        read_chunk_keys(str(keys))
    with pytest.raises(InputError, match="nowhere"):
        read_chunk_keys(str(tmp_path / "nowhere.yaml"))
