"""Captions of a run: given or found among the sources, with what is wrong or outside told."""

from __future__ import annotations

import json

import pytest

from hymotion_ray.engine.dataset.captions import read_captions
from hymotion_ray.errors import InputError
from hymotion_ray.formats.atomic import open_store
from hymotion_ray.formats.sources import list_sources


@pytest.fixture
def folder(tmp_path):
    """A motion, and captions beside it: for it, for a file that is not there, and a bad row."""
    path = tmp_path / "set"
    path.mkdir()
    (path / "walk.bvh").write_text("HIERARCHY")
    rows = ["file,caption,start,end", "walk.bvh,a person walks,,", "gone.bvh,away,,", "walk.bvh,,,"]
    (path / "captions.csv").write_text("\n".join(rows))
    return path


def test_captions_among_the_sources_are_found_and_counted(folder, tmp_path):
    said: list[str] = []
    captions = read_captions(None, [str(folder)], said.append)
    assert captions.to_mapping() == {
        "files": [str(folder / "captions.csv")],
        "captions": 2,
        "outside": 1,
        "unreadable": 1,
    }
    (file,) = [f for f in list_sources([str(folder)]) if f.name == "walk.bvh"]
    assert [c.text for c in captions.index.of(file)] == ["a person walks"]
    assert "2 captions" in said[-1]
    captions.write_rejects(open_store(tmp_path / "out"))
    (line,) = (tmp_path / "out" / "caption_rejects.jsonl").read_text().splitlines()
    assert json.loads(line)["code"] == "empty_caption"
    assert json.loads(line)["name"].endswith("captions.csv:4")


def test_a_file_that_is_given_and_found_is_read_once(folder):
    given = str(folder / "captions.csv")
    captions = read_captions(given, [str(folder)], lambda line: None)
    assert captions.to_mapping()["captions"] == 2


def test_a_bad_file_stops_the_run_only_when_it_was_given(folder):
    (folder / "captions.csv").write_text('caption\nwalks "')
    said: list[str] = []
    assert read_captions(None, [str(folder)], said.append) is None
    assert "captions.csv" in said[0]
    with pytest.raises(InputError, match=r"captions\.csv"):
        read_captions(str(folder / "captions.csv"), [str(folder)], said.append)
    with pytest.raises(InputError, match="nowhere"):
        read_captions("nowhere.csv", [str(folder)], said.append)


def test_no_captions_are_none(tmp_path):
    (tmp_path / "a.bvh").write_text("HIERARCHY")
    assert read_captions(None, [str(tmp_path)], lambda line: None) is None
