"""Every file of a collection is met once, in order, and none is dropped without a word."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from made_files import npz_with

from hymotion_ray.errors import InputError
from hymotion_ray.formats.sources import SourceReject, list_sources, read_source


def make(folder: Path) -> Path:
    for name in (
        "b/one.bvh",
        "a.NPZ",
        "b/.hidden.bvh",
        ".git/config",
        "notes.md",
        "x.c3d",
        "b/empty.npz",
        "c.weird",
        "README",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if "empty" in name else "some text")
    return folder  # fmt: skip


def test_kinds_order_and_reasons(tmp_path: Path) -> None:
    files = list(list_sources([make(tmp_path)]))
    assert [(f.name, f.kind) for f in files] == [
        (".git", "hidden"),
        ("README", "document"),
        ("a.NPZ", "npz"),
        ("b/.hidden.bvh", "hidden"),
        ("b/empty.npz", "empty"),
        ("b/one.bvh", "bvh"),
        ("c.weird", "unknown"),
        ("notes.md", "document"),
        ("x.c3d", "unknown"),
    ]
    assert all(f.note for f in files if f.kind not in ("npz", "bvh"))
    assert "solver" in files[-1].note
    assert pickle.loads(pickle.dumps(files)) == files


def test_what_is_not_read_becomes_a_reject_with_its_reason(tmp_path: Path) -> None:
    found = {f.name: next(read_source(f)) for f in list_sources([make(tmp_path)])}
    wanted = {
        ".git": ("hidden", False), "README": ("document", False), "notes.md": ("document", False),
        "b/.hidden.bvh": ("hidden", False), "c.weird": ("unknown_kind", True),
        "x.c3d": ("unknown_kind", True), "b/empty.npz": ("empty", True),
        "a.NPZ": ("damaged", True), "b/one.bvh": ("bad_syntax", True),
    }  # fmt: skip
    for name, reject in found.items():
        assert isinstance(reject, SourceReject)
        assert (reject.code, reject.is_motion) == wanted[name], name


def test_one_file_several_sources_and_a_file_met_twice(tmp_path: Path) -> None:
    make(tmp_path)
    files = list(list_sources([tmp_path / "b" / "one.bvh", tmp_path / "b", tmp_path / "b"]))
    assert [f.name for f in files] == ["one.bvh", ".hidden.bvh", "empty.npz"]


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        list(list_sources([tmp_path / "none"]))


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    data, source = tmp_path / "data", tmp_path / "source"
    make(data)
    source.mkdir()
    os.symlink(data / "b", source / "linked")
    os.symlink(source, source / "circle")
    os.symlink(tmp_path / "gone.bvh", source / "broken.bvh")
    kinds = {f.name: f.kind for f in list_sources([source])}
    assert kinds == {
        "broken.bvh": "unreadable",
        "circle": "hidden",
        "linked/.hidden.bvh": "hidden",
        "linked/empty.npz": "empty",
        "linked/one.bvh": "bvh",
    }


def test_texts_are_told_apart_by_their_content(tmp_path: Path) -> None:
    contents = {
        "walk.txt": '{"Loop": "wrap", "Frames": [[1]]}',
        "000000.txt": "a man walks#a/DET#0.0#0.0\n",
        "notes.txt": "remember the milk # not # this",
        "captions.csv": "file,caption\n",
        "index.csv": "source_path,start_frame,end_frame,new_name\n",
        "prices.csv": "item,price\n",
        "train.json": '{"1": {"babel_sid": 1, "feat_p": "a/b"}}',
        "meta.json": '{"text": "x"}',
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    kinds = {f.name: f.kind for f in list_sources([tmp_path])}
    assert kinds == {
        "walk.txt": "deepmimic",
        "000000.txt": "captions",
        "notes.txt": "document",
        "captions.csv": "captions",
        "index.csv": "captions",
        "prices.csv": "document",
        "train.json": "captions",
        "meta.json": "document",
    }


def test_members_of_archives_lie_where_they_would_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "cmu.zip").write_bytes(npz_with({"cmu/a.bvh": b"x", "cmu/.b.bvh": b"x"}))
    files = list(list_sources([tmp_path]))
    assert [(f.name, f.kind) for f in files] == [
        ("cmu.zip/cmu/a.bvh", "bvh"), ("cmu.zip/cmu/.b.bvh", "hidden"),
    ]  # fmt: skip
    assert files[0].place == f"{tmp_path}/cmu/a.bvh"
    assert files[0].member == "cmu/a.bvh"


def test_file_urls_are_local_paths(tmp_path: Path) -> None:
    make(tmp_path)
    names = [f.name for f in list_sources([f"file://{tmp_path}"])]
    assert names == [f.name for f in list_sources([tmp_path])]
