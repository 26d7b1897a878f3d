"""A collection in an object store is listed and read as one on disk is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_files import amass_arrays, amc_text, asf_text, npz_with, save_npz
from object_store import serving

from hymotion_ray.formats.sources import SourceClip, list_sources, load_captions, read_source


@pytest.fixture(name="store")
def s3_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    with serving(monkeypatch, "motions") as client:
        yield client


def test_the_same_clips_and_captions_as_on_disk(store, tmp_path: Path) -> None:
    save_npz(tmp_path / "set" / "CMU" / "01" / "01_01_poses.npz", amass_arrays())
    (tmp_path / "set" / "07_01.amc").write_text(amc_text())
    (tmp_path / "set" / "07.asf").write_text(asf_text())
    members = {"a/08_01.amc": amc_text().encode(), "a/08.asf": asf_text().encode()}
    (tmp_path / "set" / "more.zip").write_bytes(npz_with(members))
    (tmp_path / "set" / "captions.csv").write_text("file,caption\n07_01.amc,x\na/08_01.amc,y\n")
    for path in sorted((tmp_path / "set").rglob("*")):
        if path.is_file():
            key = path.relative_to(tmp_path).as_posix()
            store.put_object(Bucket="motions", Key=key, Body=path.read_bytes())

    def found(root: str) -> list[tuple]:
        captions = load_captions([f"{root}/captions.csv"])
        files = list(list_sources([root]))
        assert captions.num_outside(files) == 0
        return [
            (clip.name, clip.num_frames, tuple(c.text for c in clip.captions))
            for file in files
            for clip in read_source(file, captions=captions)
            if isinstance(clip, SourceClip)
        ]

    here, there = found(str(tmp_path / "set")), found("s3://motions/set")
    assert sorted(here) == sorted(there)
    assert len(here) == 3
    assert [texts for _, _, texts in sorted(here)] == [("x",), (), ("y",)]
