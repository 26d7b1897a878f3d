"""Captions of every form, joined to the clips that they speak of."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import pytest
from made_files import amass_arrays, save_npz

from hymotion_ray.errors import InputError
from hymotion_ray.formats.sources import (
    Caption,
    SourceClip,
    SourceFile,
    list_sources,
    load_captions,
    read_source,
)
from hymotion_ray.formats.sources.caption_files import humanml3d_line
from hymotion_ray.formats.sources.caption_index import amass_key


def texts(captions: tuple[Caption, ...]) -> list[str]:
    return [caption.text for caption in captions]


def bvh(path: str, member: str = "") -> SourceFile:
    name = member or path
    return SourceFile(path=path, member=member, name=name, kind="bvh", size=1)


# --- CSV ------------------------------------------------------------------------------------------


def test_the_table_of_the_shared_corpus(shared: Path) -> None:
    corpus = shared / "corpus"
    index = load_captions([str(corpus / "captions.csv")])
    files = list(list_sources([corpus]))
    assert index.num_captions == 126
    assert index.rejects == []
    assert index.num_outside(files) == 0
    of_cmu = (corpus / "captions.csv").read_text().count("\ncmu/")
    assert index.num_outside([f for f in files if "cmu" not in f.name]) == of_cmu > 10
    by_name = {file.name: file for file in files}
    assert texts(index.of(by_name["cmu.zip/cmu/02_01.amc"])) == [
        "a person walks forward", "walking",
    ]  # fmt: skip
    rogue = by_name["gltf/kaykit_rogue.glb"]
    assert texts(index.of(rogue, "Idle")) == ["a person stands still"]
    assert index.of(rogue, "T-Pose") == ()


def test_names_are_relative_to_the_table_and_rows_may_be_bad(tmp_path: Path) -> None:
    table = tmp_path / "a" / "captions.csv"
    table.parent.mkdir()
    table.write_bytes(
        b"\xef\xbb\xbfFile,Clip,Caption,Start,End,Mirrored\r\n"
        b'walks/one.bvh,,"a person walks, slowly",,,\r\n'
        b"walks/../walks/one.bvh,,from here,1.5,2.5,true\r\n"
        b"../b/two.bvh,,another folder,,,\r\n"
        b"walks/one.bvh,,caf\xe9,,,\r\n"
        b"walks/one.bvh,,,,,\r\n"
        b",,nameless,,,\r\n"
        b"walks/one.bvh,,backwards in time,3,2,\r\n"
        b"walks/one.bvh,,when,soon,2,\r\n"
        b"\r\n"
        b"walks/one.bvh,,  two   spaces \r\n"
    )
    index = load_captions([str(table)])
    one = index.of(bvh(str(tmp_path / "a" / "walks" / "one.bvh")))
    assert texts(one) == ["a person walks, slowly", "from here", "two spaces"]
    assert one[0] == Caption(text="a person walks, slowly", start=0.0, end=math.inf)
    assert one[1] == Caption(text="from here", start=1.5, end=2.5, mirrored=True)
    assert texts(index.of(bvh(str(tmp_path / "b" / "two.bvh")))) == ["another folder"]
    assert [r.code for r in index.rejects] == [
        "bad_encoding", "empty_caption", "bad_row", "bad_times", "bad_times",
    ]  # fmt: skip
    assert index.rejects[0].name.endswith("captions.csv:5")
    assert not any(r.is_motion for r in index.rejects)
    assert pickle.loads(pickle.dumps(index)).num_captions == index.num_captions


@pytest.mark.parametrize("written", ["cmu/one.bvh", "cmu.zip/cmu/one.bvh"])
def test_members_of_an_archive_are_named_as_if_unpacked(tmp_path: Path, written: str) -> None:
    table = tmp_path / "captions.csv"
    table.write_text(f"file,caption\n{written},a walk\n")
    index = load_captions([str(table)])
    assert texts(index.of(bvh(str(tmp_path / "cmu.zip"), "cmu/one.bvh"))) == ["a walk"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "name,words\nx,y\n", "columns"),
        ("a.csv", "", "columns"),
        ("a.json", "[1, 2]", "expected an object"),
        ("a.json", "{", "not JSON"),
    ],
)
def test_files_of_no_known_form(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        load_captions([str(tmp_path / name)])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such"):
        load_captions([str(tmp_path / "none.csv")])


# --- HumanML3D ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("a man walks#a/DET man/NOUN#0.0#0.0", ("a man walks", 0.0, None)),
        ("turns #2 times#x/Y#1.5#3.0", ("turns #2 times", 1.5, 3.0)),
        ("swapped#x#3.0#1.0", ("swapped", 1.0, 3.0)),
        ("nothing#x#nan#nan", ("nothing", 0.0, None)),
        ("equal#x#2.0#2.0", ("equal", 0.0, None)),
        ("end only#x##2.0\r\n", ("end only", 0.0, 2.0)),
    ],
)
def test_annotation_lines(line: str, wanted: tuple) -> None:
    assert humanml3d_line(line) == wanted


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("./pose_data/KIT/3/kick_high_left02_poses.npy", "AMASS/KIT/3/kick_high_left02_poses.npz"),
        ("BioMotionLab_NTroje/rub001/0000_treadmill_norm_poses.npz",
         "x/BMLrub/rub001/0000_treadmill_norm_stageii.npz"),
        ("MPI_HDM05/bd/HDM bd 01_poses.npy", "HDM05/bd/HDM_bd_01_stageii.npz"),
        ("DFaust_67/50002/50002_wings_poses.npz", "DFaust/50002/50002_wings_stageii"),
        ("SSM_synced/1/a_poses.npz", "SSM/1/a_stageii.npz"),
    ],
)  # fmt: skip
def test_takes_are_the_same_in_both_releases(one: str, other: str) -> None:
    assert amass_key(one) == amass_key(other)
    assert amass_key(one) != amass_key(one.replace("/", "/x", 1).replace("_poses", "b_poses"))


def humanml3d(folder: Path) -> Path:
    (folder / "texts").mkdir(parents=True)
    rows = [
        "source_path,start_frame,end_frame,new_name",
        "./pose_data/CMU/01/01_01_poses.npy,20,80,000000.npy",
        "./pose_data/MPI_HDM05/bd/clip_poses.npy,0,40,000001.npy",
        "./pose_data/humanact12/humanact12/P01.npy,0,-1,000002.npy",
        "./pose_data/CMU/99/99_99_poses.npy,0,100,000003.npy",
    ]
    (folder / "index.csv").write_text("\n".join(rows))
    files = {
        "000000": "a man walks#a/DET#0.0#0.0\nhe turns left#x#1.0#2.0\n",
        "M000000": "a man walks#a/DET#0.0#0.0\nhe turns right#x#1.0#2.0\n",
        "000001": "bad line\nsits#x#0.0#0.0\n",
        "000003": "elsewhere#x#0.0#0.0\n",
    }
    for name, text in files.items():
        (folder / "texts" / f"{name}.txt").write_text(text)
    return folder


def test_spans_are_at_20_fps_after_the_trim_and_mirrors_are_marked(tmp_path: Path) -> None:
    index = load_captions([str(humanml3d(tmp_path / "HumanML3D"))])
    walk = tmp_path / "AMASS" / "CMU" / "01" / "01_01_poses.npz"
    arrays = amass_arrays(600)
    save_npz(walk, arrays)
    sits = save_npz(tmp_path / "AMASS" / "HDM05" / "bd" / "clip_stageii.npz", amass_arrays(660))
    files = list(list_sources([tmp_path / "AMASS"]))
    assert index.num_outside(files) == 1
    found = {f.name: list(read_source(f, captions=index))[0] for f in files}  # noqa: RUF015
    clip = found["CMU/01/01_01_poses.npz"]
    assert isinstance(clip, SourceClip)
    assert clip.captions == (
        Caption(text="a man walks", start=1.0, end=4.0),
        Caption(text="he turns left", start=2.0, end=3.0),
        Caption(text="a man walks", start=1.0, end=4.0, mirrored=True),
        Caption(text="he turns right", start=2.0, end=3.0, mirrored=True),
    )
    other = found[f"HDM05/bd/{sits.name}"]
    assert isinstance(other, SourceClip)
    assert other.captions == (Caption(text="sits", start=3.0, end=5.0),)
    assert sorted(r.code for r in index.rejects) == ["bad_row", "positions_only"]


def test_humanml3d_files_in_a_source_are_no_motions(tmp_path: Path) -> None:
    kinds = {f.name: f.kind for f in list_sources([humanml3d(tmp_path)])}
    assert set(kinds.values()) == {"captions"}
    assert kinds["index.csv"] == kinds["texts/000000.txt"] == "captions"


# --- BABEL and the unifier ------------------------------------------------------------------------


def test_babel_labels_of_the_take_and_its_parts(tmp_path: Path) -> None:
    labels = [
        {"raw_label": "walk", "proc_label": "walk", "start_t": 0, "end_t": 2.5},
        {"raw_label": "transition", "proc_label": "transition", "start_t": 2.5, "end_t": 3},
        {"raw_label": "", "proc_label": "x", "start_t": 3, "end_t": 4},
        {"raw_label": "sit", "proc_label": "sit", "start_t": 90, "end_t": 99},
    ]
    babel = {
        "1": {"babel_sid": 1, "feat_p": "CMU/CMU/01/01_01_poses.npz", "dur": 5.0,
              "seq_ann": {"labels": [{"raw_label": "walking around", "proc_label": "walk"}]},
              "frame_ann": {"labels": labels}},
        "2": {"babel_sid": 2, "feat_p": "KIT/KIT/3/x_poses.npz", "dur": 3.0, "seq_ann": None,
              "frame_ann": None},
        "3": "broken",
    }  # fmt: skip
    (tmp_path / "train.json").write_text(json.dumps(babel))
    index = load_captions([str(tmp_path / "train.json")])
    path = save_npz(tmp_path / "CMU" / "01" / "01_01_poses.npz", amass_arrays(600))
    (file,) = list_sources([path])
    (clip,) = read_source(file, captions=index)
    assert isinstance(clip, SourceClip)
    assert clip.captions == (
        Caption(text="walking around", start=0.0, end=5.0),
        Caption(text="walk", start=0.0, end=2.5),
    )
    assert "1 captions start after" in str(clip.provenance["warnings"])
    assert sorted(r.code for r in index.rejects) == ["bad_row", "empty_caption"]
    slow = amass_arrays(600) | {"mocap_framerate": 60.0}
    save_npz(path, slow)
    (clip,) = read_source(file, captions=index)
    assert isinstance(clip, SourceClip)
    assert "frame rate doubtful" in str(clip.provenance["warnings"])


def test_extra_babel_lists_and_the_unifiers_form(tmp_path: Path) -> None:
    extra = {
        "9": {"feat_p": "CMU/CMU/01/01_01_poses.npz", "dur": 5.0,
              "seq_anns": [{"labels": [{"raw_label": "a"}]}, {"labels": [{"raw_label": "b"}]}],
              "frame_anns": [{"labels": [{"raw_label": "c", "start_t": 1, "end_t": 2}]}]},
        "u": {"path": "CMU/01/01_01", "duration": 5.0,
              "annotations": [{"seg_id": "0", "text": "d", "start": 0.5, "end": 1.0}]},
    }  # fmt: skip
    (tmp_path / "extra.json").write_text(json.dumps(extra))
    index = load_captions([str(tmp_path / "extra.json")])
    assert [c.text for c in index.by_take["cmu/01/01_01"]] == ["a", "b", "c", "d"]
