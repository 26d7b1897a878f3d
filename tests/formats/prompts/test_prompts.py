"""Whole prompt files: the contract's examples and the stories of what broke in such tools."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from hymotion_ray.errors import ConfigError, InputError
from hymotion_ray.formats.prompts import PromptRow, PromptTable, Reject, iter_prompts, read_prompts

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def _txt(folder: Path, text: str, name: str = "p.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def _codes(table: PromptTable) -> list[tuple[int, str]]:
    return [(reject.line, reject.code) for reject in table.rejects]


@pytest.mark.parametrize(
    ("line", "text", "num_frames", "prompt_id"),
    [
        ("A#90#w.1", "A", 90, "w.1"),
        ("run##001", "run", 150, "001"),
        ("A #90", "A", 90, "p-1"),
        ("Walk to house #5 slowly", "Walk to house #5 slowly", 150, "p-1"),
        ("Walk to house #5 slowly#90#001", "Walk to house #5 slowly", 90, "001"),
        ("run#60#walk_a", "run", 60, "walk_a"),
        ("run#20", "run", 20, "p-1"),
        ("run#360#b", "run", 360, "b"),
    ],
)
def test_endings_of_a_line(tmp_path, line, text, num_frames, prompt_id):
    (row,) = read_prompts(_txt(tmp_path, line)).rows
    assert (row.text, row.num_frames, row.prompt_id) == (text, num_frames, prompt_id)
    assert row.warnings == ()


@pytest.mark.parametrize("line", ["I am #1", "run#90.5#1", "run#abc#1", "run#5", "run#0"])
def test_a_bare_small_number_is_rejected_with_advice(tmp_path, line):
    (reject,) = read_prompts(_txt(tmp_path, line)).rejects
    assert reject.code == "ambiguous_length"
    assert ".jsonl" in reject.message
    assert reject.text == line


@pytest.mark.parametrize("asked", ["0", "-30", "6000", "5000", "1e308", "nan", "9" * 5000])
@pytest.mark.parametrize("form", ["run#{}", "run#{}#x"])
def test_lengths_that_no_clip_can_have_are_rejected(tmp_path, asked, form):
    table = read_prompts(_txt(tmp_path, f"walk\n{form.format(asked)}\nwave\n"))
    assert [row.text for row in table.rows] == ["walk", "wave"]
    assert [reject.line for reject in table.rejects] == [2]


@pytest.mark.parametrize(
    ("asked", "got"), [("19", 20), ("1", 20), ("361", 360), ("700", 360), ("4999", 360)]
)
def test_lengths_out_of_range_are_clamped_and_said(tmp_path, asked, got):
    path = _txt(tmp_path, f"run#{asked}#x")
    (row,) = read_prompts(path).rows
    assert (row.num_frames, row.requested_frames, row.warnings) == (got, int(asked), ("clamped",))
    (reject,) = read_prompts(path, strict=True).rejects
    assert (reject.code, reject.prompt_id) == ("length_out_of_range", "x")


def test_default_length_keeps_to_the_same_limits(tmp_path):
    path = _txt(tmp_path, "run")
    assert read_prompts(path, default_frames=60).rows[0].num_frames == 60
    assert read_prompts(path, default_frames=600).rows[0].warnings == ("clamped",)
    for wrong in (0, 5000, -1):
        with pytest.raises(ConfigError, match="default_frames"):
            read_prompts(path, default_frames=wrong)
    with pytest.raises(ConfigError, match="min_frames"):
        read_prompts(path, min_frames=400)


def test_blank_lines_are_counted_and_line_ends_do_not_matter(tmp_path):
    table = read_prompts(_txt(tmp_path, "\ufeffwalk\r\n\r\n   \u3000\nrun\rjump\n\n"))
    assert [(row.text, row.prompt_id) for row in table.rows] == [
        ("walk", "p-1"),
        ("run", "p-4"),
        ("jump", "p-5"),
    ]
    assert table.rejects == ()


@pytest.mark.parametrize("line", ["#60#1", "   #90", "##x", "...", "\u200b#60#a", "###"])
def test_empty_prompts_are_rejected(tmp_path, line):
    assert _codes(read_prompts(_txt(tmp_path, line))) == [(1, "empty_prompt")]


def test_one_bad_byte_costs_one_line_and_names_its_offset(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes("走路#60#a\n".encode() + b"run \xff\xfe fast\n" + b"jump\n")
    table = read_prompts(path)
    assert [row.text for row in table.rows] == ["走路", "jump"]
    assert _codes(table) == [(2, "bad_encoding")]
    assert "offset 16 " in table.rejects[0].message


def test_other_codecs_are_rejected_not_guessed(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes("一个人走路\n".encode("gbk"))
    assert _codes(read_prompts(path)) == [(1, "bad_encoding")]
    path.write_bytes("a person walks\n".encode("utf-16"))
    assert _codes(read_prompts(path)) == [(0, "wrong_kind")]
    assert "UTF-8" in read_prompts(path).rejects[0].message
    path.write_bytes("a person walks\n".encode("utf-16-le"))
    assert _codes(read_prompts(path))[0] == (1, "bad_text")


def test_files_are_read_as_utf8_whatever_the_locale(tmp_path):
    path = _txt(tmp_path, "一个人走路#60#z\n")
    code = (
        "import sys; from hymotion_ray.formats.prompts import read_prompts;"
        "print(ascii(read_prompts(sys.argv[1]).rows[0].text))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == ascii("一个人走路")


@pytest.mark.parametrize(
    "text",
    [
        "一个人向前走。",
        "Человек идёт вперёд.",
        "Una persona camina hacia adelante y luego corre.",
        "Uma pessoa anda para a frente.",
        "Eine Person geht nach vorne und setzt sich.",
    ],
)
def test_other_languages_are_kept_with_a_warning(tmp_path, text):
    (row,) = read_prompts(_txt(tmp_path, f"{text}#60#z")).rows
    assert (row.text, row.warnings) == (text, ("not_english",))


@pytest.mark.parametrize(
    "text",
    ["A person walks.", "jumping jacks", "A dancer performs a plié", "walks like 李小龙 does"],
)
def test_english_is_not_warned_of(tmp_path, text):
    assert read_prompts(_txt(tmp_path, text)).rows[0].warnings == ()


def test_a_very_long_prompt_is_kept_whole(tmp_path):
    text = " ".join(["step forward"] * 200)
    (row,) = read_prompts(_txt(tmp_path, text + "#60#long")).rows
    assert row.text == text


def test_a_line_without_end_is_passed_over(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes(b"walk\n" + b"x" * 3_000_000 + b"\nrun\n")
    table = read_prompts(path)
    assert [(row.text, row.line) for row in table.rows] == [("walk", 1), ("run", 3)]
    assert _codes(table) == [(2, "line_too_long")]


def test_control_tokens_and_hashes_stay_in_the_sentence(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"text": "<|im_end|> walk #90#x"}))
    assert read_prompts(path).rows[0].text == "<|im_end|> walk #90#x"


@pytest.mark.parametrize("name", ["PROMPTS.TXT", "p.Txt.GZ", "p.txt.zst", "p.TXT.ZST"])
def test_suffix_in_any_case_and_compressed(tmp_path, name):
    data = b"walk#60#a\nrun#60#b\n"
    if name.lower().endswith(".gz"):
        data = gzip.compress(data[:10]) + gzip.compress(data[10:])
    elif name.lower().endswith(".zst"):
        data = zstandard.compress(data[:10]) + zstandard.compress(data[10:])
    (tmp_path / name).write_bytes(data)
    for paths in (tmp_path / name, tmp_path, str(tmp_path / "*")):
        assert [row.prompt_id for row in read_prompts(paths).rows] == ["a", "b"]


def test_a_cut_off_archive_is_one_reject_after_its_good_rows(tmp_path):
    data = gzip.compress(b"".join(b"walk number %d\n" % n for n in range(50_000)))
    (tmp_path / "a.txt.gz").write_bytes(data[: len(data) // 2])
    _txt(tmp_path, "run\n", "b.txt")
    table = read_prompts(tmp_path)
    assert _codes(table) == [(0, "unreadable_file")]
    assert table.rows[-1].text == "run"
    assert all(row.text.startswith("walk number") for row in table.rows[:-1])


def test_two_files_of_a_folder_do_not_share_names(tmp_path):
    _txt(tmp_path, "walk\nrun\n", "a.txt")
    _txt(tmp_path, "jump\n", "b.txt")
    assert [row.prompt_id for row in read_prompts(tmp_path).rows] == ["a-1", "a-2", "b-1"]


def test_repeated_ids_are_settled_not_overwritten(tmp_path):
    _txt(tmp_path, "walk#60#7\nrun#60#7\n", "a.txt")
    _txt(tmp_path, "jump\n", "b.txt")
    (tmp_path / "b.jsonl").write_text('{"text": "hop"}\n')
    table = read_prompts(tmp_path)
    assert _codes(table) == [(2, "duplicate_id")]
    assert table.rejects[0].message.count("a.txt:1") == 1
    assert [row.prompt_id for row in table.rows] == ["7", "b-1", "b-1-2"]
    again = read_prompts(tmp_path, duplicates="suffix")
    assert [row.prompt_id for row in again.rows] == ["7", "7-2", "b-1", "b-1-2"]


def test_inputs_without_prompts_are_empty_with_a_warning(tmp_path):
    empty = _txt(tmp_path, "", "empty.txt")
    blank = _txt(tmp_path, "\n \n\r\n", "blank.txt")
    for path in (empty, blank):
        table = read_prompts(path)
        assert (table.rows, table.rejects) == ((), ())
        assert any("no prompts" in warning for warning in table.warnings)
    (tmp_path / "sub").mkdir()
    assert any("no file of prompts" in w for w in read_prompts(tmp_path / "sub").warnings)


def test_paths_that_cannot_be_are_refused_before_any_row(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        iter_prompts(tmp_path / "missing.txt")
    with pytest.raises(InputError, match="matches nothing"):
        iter_prompts(str(tmp_path / "*.txt"))
    (tmp_path / "p.docx").write_text("walk")
    with pytest.raises(InputError, match=r"\.jsonl"):
        iter_prompts(tmp_path / "p.docx")
    with pytest.raises(InputError, match="scheme"):
        iter_prompts("ftp://host/p.txt")


def test_files_of_another_kind_under_a_text_name(tmp_path):
    table = pa.table({"text": ["walk"]})
    pq.write_table(table, tmp_path / "a.txt")
    (tmp_path / "b.txt").write_bytes(gzip.compress(b"walk"))
    (tmp_path / "c.csv").write_bytes(b"PK\x03\x04 spreadsheet")
    (tmp_path / "d.json").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (tmp_path / "e.parquet").write_bytes(b"not parquet")
    found = read_prompts(tmp_path)
    assert [reject.code for reject in found.rejects] == ["wrong_kind"] * 4 + ["unreadable_file"]
    assert found.rows == ()


def test_rows_and_rejects_travel_between_processes(tmp_path):
    table = read_prompts(_txt(tmp_path, "walk#60#a\nI am #1\n"))
    assert pickle.loads(pickle.dumps(table)) == table
    mapping = table.rejects[0].to_mapping()
    assert json.loads(json.dumps(mapping)) == mapping
    assert set(mapping) == {"file", "line", "code", "message", "prompt_id", "text"}


def test_summary_counts(tmp_path):
    table = read_prompts(_txt(tmp_path, "walk#5#a\nrun#60#a\nI am #1\n走#60#z\n"))
    assert table.summary == {
        "num_rows": 2,
        "num_rejects": 2,
        "rejects": {"duplicate_id": 1, "ambiguous_length": 1},
        "warnings": {"clamped": 1, "not_english": 1},
        "num_files": 1,
        "num_groups": 1,
    }


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.jsonl", "prompts.csv", "groups.json"])
def test_our_examples_are_clean(name):
    table = read_prompts(EXAMPLES / name)
    assert len(table.rows) == 12
    assert (table.rejects, table.warnings) == ((), ())
    assert [row.warnings for row in table.rows] == [()] * 12


def test_the_released_tools_own_examples(shared):
    table = read_prompts(shared / "prompts" / "example_subset.json")
    assert (len(table.rows), table.rejects, table.warnings) == (57, (), ())
    first = table.rows[0]
    assert (first.prompt_id, first.num_frames, first.group) == ("001", 90, "test_prompts_subset")


def test_the_stream_gives_what_the_table_holds(tmp_path):
    path = _txt(tmp_path, "walk#60#a\nI am #1\nrun\n")
    stream = list(iter_prompts([path]))
    assert [type(row) for row in stream] == [PromptRow, Reject, PromptRow]
    table = read_prompts([str(path)])
    assert (stream[0], stream[2]) == table.rows
    assert (stream[1],) == table.rejects
