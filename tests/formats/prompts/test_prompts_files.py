"""Which files of a folder or glob are read, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hymotion_ray.errors import InputError
from hymotion_ray.formats.prompts.files import list_prompt_files


def _make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("walk\n")


def _names(paths, root: Path, warnings: list[str] | None = None) -> list[str]:
    heard: list[str] = []
    files = list_prompt_files(paths, heard.append)
    if warnings is not None:
        warnings += heard
    return [os.path.relpath(file.name, root) for file in files]


def test_a_folder_is_read_whole_and_sorted(tmp_path):
    _make(tmp_path, "b.txt", "a.CSV", "sub/deep/c.jsonl.gz", "sub/a.parquet", "a.json.ZST")
    expected = ["a.CSV", "a.json.ZST", "b.txt", "sub/a.parquet", "sub/deep/c.jsonl.gz"]
    assert _names(tmp_path, tmp_path) == expected


def test_what_is_passed_over_is_counted(tmp_path):
    _make(tmp_path, "a.txt", "notes.md", "x.parquet.gz", "y.txt.bz2", ".hidden.txt", ".git/b.txt")
    _make(tmp_path, "out/config.json", "out/manifest/part-1.parquet", "out/rejects.jsonl")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    warnings: list[str] = []
    assert _names(tmp_path, tmp_path, warnings) == ["a.txt"]
    assert "named twice" in warnings[0]
    assert "files of other kinds: 3" in warnings[1]
    assert "things that are not plain files: 2" in warnings[1]
    assert "links to folders: 1" in warnings[1]
    assert "output folders of earlier renders: 1" in warnings[1]


def test_globs(tmp_path):
    _make(tmp_path, "a1.txt", "a2.txt", "b.txt", "sub/a3.txt", "sub/deep/a4.txt", "a.md")
    warnings: list[str] = []
    assert _names(str(tmp_path / "a*"), tmp_path, warnings) == ["a1.txt", "a2.txt"]
    assert "files of other kinds: 1" in warnings[0]
    every = ["a1.txt", "a2.txt", "sub/a3.txt", "sub/deep/a4.txt"]
    assert _names(str(tmp_path / "**" / "a*.txt"), tmp_path) == every
    assert _names(str(tmp_path / "s*"), tmp_path) == ["sub/a3.txt", "sub/deep/a4.txt"]


def test_a_name_with_glob_characters_is_that_file_first(tmp_path):
    _make(tmp_path, "a[1].txt", "a1.txt")
    assert _names(str(tmp_path / "a[1].txt"), tmp_path) == ["a[1].txt"]


def test_one_file_named_in_two_ways_is_read_once(tmp_path):
    _make(tmp_path, "a.txt", "b.txt")
    warnings: list[str] = []
    paths = [tmp_path / "b.txt", f"file://{tmp_path}/a.txt", tmp_path]
    assert len(_names(paths, tmp_path, warnings)) == 2
    assert len(warnings) == 2


def test_home_and_file_urls(tmp_path, monkeypatch):
    _make(tmp_path, "with space.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(list_prompt_files("~/with space.txt", lambda _: None)) == 1
    (file,) = list_prompt_files((tmp_path / "with space.txt").as_uri(), lambda _: None)
    assert file.stem == "with space"
    with pytest.raises(InputError, match="file:///"):
        list_prompt_files("file://server/share/p.txt", lambda _: None)


def test_names_that_are_not_utf8_can_be_written_out(tmp_path):
    path = os.fsencode(tmp_path) + b"/p\xff.txt"
    try:
        with open(path, "w") as file:
            file.write("walk\n")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    (file,) = list_prompt_files(tmp_path, lambda _: None)
    assert (file.name.encode(), file.stem) == (os.fsencode(tmp_path) + b"/p?.txt", "p?")


@pytest.mark.parametrize("wrong", ["a\0.txt", "s3://", "http://host/p.txt", "az://container/p.txt"])
def test_places_that_cannot_be(wrong, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InputError):
        list_prompt_files(wrong, lambda _: None)
