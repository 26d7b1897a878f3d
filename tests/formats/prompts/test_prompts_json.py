"""Prompts as JSON: documents read as a stream, and JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymotion_ray.errors import PromptError
from hymotion_ray.formats.names import safe_group
from hymotion_ray.formats.prompts import PromptTable, read_prompts
from hymotion_ray.formats.prompts import json_file as prompt_json
from hymotion_ray.formats.prompts.files import list_prompt_files


def _read(folder: Path, content: object, name: str = "p.json") -> PromptTable:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_prompts(path)


def _codes(table: PromptTable) -> list[str]:
    return [reject.code for reject in table.rejects]


def test_groups_of_lines_and_objects(tmp_path):
    table = _read(
        tmp_path,
        {"walks": ["A walks.#90#a", {"text": "B walks.", "duration": 2}], "runs": ["A runs.#60#a"]},
    )
    assert [(r.group, r.prompt_id, r.num_frames, r.line) for r in table.rows] == [
        ("walks", "a", 90, 1),
        ("walks", "p-2", 60, 2),
        ("runs", "a", 60, 3),
    ]
    assert table.rejects == ()


def test_list_of_objects_with_every_field(tmp_path):
    entry = {
        "prompt_id": "x",
        "text": " walk ",
        "num_frames": 60,
        "seeds": [3, 4],
        "guidance_scale": 2,
        "num_steps": 10,
        "group": "g/h",
    }
    (row,) = _read(tmp_path, [entry]).rows
    assert (row.prompt_id, row.text, row.num_frames, row.seeds) == ("x", "walk", 60, (3, 4))
    assert (row.guidance_scale, row.num_steps, row.group) == (2.0, 10, "g/h")
    assert row.explicit_id


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(["走#60#a"], ensure_ascii=False).encode())
    assert read_prompts(path).rows[0].text == "走"


def test_no_group_is_dropped_for_its_name(tmp_path):
    groups = {"walk_chn": ["走#60#a"], "walk": ["walk#60#a"], "": ["run#60#a"]}
    assert [row.group for row in _read(tmp_path, groups).rows] == ["walk_chn", "walk", ""]


@pytest.mark.parametrize("key", ["../../x", "/etc/x", "C:\\x", "a\0b", "CON", "x. ", "..", "."])
def test_group_keys_stay_below_the_output(tmp_path, key):
    table = _read(tmp_path, {key: ["walk#60#a"], "ok": ["run#60#b"]})
    for row in table.rows:
        folder = (tmp_path / "out" / safe_group(row.group)).resolve()
        assert folder.is_relative_to(tmp_path / "out")
        assert folder != tmp_path / "out"
    assert [row.prompt_id for row in table.rows][-1] == "b"
    assert len(table.rows) + len(table.rejects) == 2


def test_a_group_given_twice_keeps_both_lists(tmp_path):
    table = _read(tmp_path, '{"g": ["walk#60#a"], "g": ["run#60#b"]}')
    assert [(row.group, row.prompt_id) for row in table.rows] == [("g", "a"), ("g", "b")]


def test_wrong_entries_are_single_rejects(tmp_path):
    text = '{"g": [1, null, ["x"], "walk#60#a", {"text": "b", "num_frames": NaN}], "h": {"x": []}}'
    table = _read(tmp_path, text)
    assert [row.prompt_id for row in table.rows] == ["a"]
    assert _codes(table) == ["bad_row", "bad_row", "bad_row", "bad_length", "bad_group"]


@pytest.mark.parametrize(
    "text",
    [
        '{"g": ["walk#60#a"',
        '{"g": ["walk#60#a",]}',
        '{"g": ["walk#60#a"]} trailing',
        '["walk" "run"]',
        '"walk"',
        "12",
        "{walk: []}",
        '["walk#60#a", "run',
        '["a", ' + "[" * 100_000,
        '["a", ' + "9" * 10_000 + "]",
    ],
)
def test_a_damaged_document_is_one_reject_and_no_rows(tmp_path, text):
    table = _read(tmp_path, text)
    assert table.rows == ()
    assert [(reject.line, reject.code) for reject in table.rejects] == [(0, "bad_json")]


def test_the_place_of_damage_is_named(tmp_path):
    table = _read(tmp_path, '{"g": [\n"walk",\n"run"\n"jump"]}')
    assert "line 4" in table.rejects[0].message


def test_a_byte_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "p.json"
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(mark + b'["walk", "r\xffn"]')
        (reject,) = read_prompts(path).rejects
        assert reject.code == "bad_encoding"
        assert f"offset {11 + len(mark)} " in reject.message


@pytest.mark.parametrize("text", ["", "  \n", "[]", "{}", '{"g": []}', "[ ]", "{ }"])
def test_empty_documents_hold_no_rows(tmp_path, text):
    table = _read(tmp_path, text)
    assert (table.rows, table.rejects) == ((), ())


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    groups=st.dictionaries(st.text(max_size=4), st.lists(_VALUES, max_size=4), max_size=4),
    size=st.integers(1, 9),
    indent=st.sampled_from([None, 1]),
)
def test_streaming_equals_reading_at_once(tmp_path_factory, groups, size, indent):
    """Whatever the chunks' bounds, also within numbers and escapes."""
    path = tmp_path_factory.mktemp("json") / "p.json"
    path.write_text(json.dumps(groups, indent=indent), encoding="utf-8")
    (file,) = list_prompt_files(path, lambda _: None)
    whole = [(group, entry) for group, entries in groups.items() for entry in entries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hymotion_ray.formats.streams.CHUNK_BYTES", size)
        streamed = list(prompt_json._entries(file))
    assert json.dumps(streamed) == json.dumps(whole)


def test_an_entry_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_json, "MAX_ENTRY_CHARS", 1000)
    table = _read(tmp_path, json.dumps(["walk", "x" * 2_000_000]))
    assert _codes(table) == ["bad_json"]
    assert "1000 characters" in table.rejects[0].message


# --- JSON lines -----------------------------------------------------------------------------------


def _lines(folder: Path, *lines: object) -> PromptTable:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return _read(folder, text, "p.jsonl")


def test_a_bad_line_never_stops_the_next(tmp_path):
    table = _lines(
        tmp_path,
        {"text": "walk"},
        "",
        '{"text": "broken',
        "[1]",
        '"a string"',
        "[" * 100_000,
        '{"text": "x", "num_frames": ' + "9" * 10_000 + "}",
        {"text": "run"},
    )
    assert [(row.text, row.prompt_id) for row in table.rows] == [("walk", "p-1"), ("run", "p-8")]
    assert [(reject.line, reject.code) for reject in table.rejects] == [
        (3, "bad_json"),
        (4, "bad_row"),
        (5, "bad_row"),
        (6, "bad_json"),
        (7, "bad_json"),
    ]


def test_ids_are_opaque_and_numbers_become_strings(tmp_path):
    given_ids = [7, "007", " x", "走", "", None, 1.0, 2.5, "a/b#c"]
    table = _lines(tmp_path, *({"prompt_id": value, "text": "walk"} for value in given_ids))
    assert [row.prompt_id for row in table.rows] == [
        "7", "007", " x", "走", "p-5", "p-6", "1", "2.5", "a/b#c",
    ]  # fmt: skip
    assert [row.explicit_id for row in table.rows] == [True] * 4 + [False] * 2 + [True] * 3


@pytest.mark.parametrize("wrong", [True, [1], {"a": 1}, float("nan"), "a\0b", "\ud800", "x" * 5000])
def test_ids_that_no_output_could_carry(tmp_path, wrong):
    table = _lines(tmp_path, {"prompt_id": wrong, "text": "walk"}, {"text": "run"})
    assert len(table.rejects) == 1
    assert table.rejects[0].code in ("bad_id", "bad_encoding")
    json.dumps(table.rejects[0].to_mapping(), ensure_ascii=False).encode()


@pytest.mark.parametrize("wrong", [5, None, ["walk"], True, "a\0b", "half \ud83d pair", ""])
def test_texts_that_are_no_sentence(tmp_path, wrong):
    table = _lines(tmp_path, {"text": wrong}, {"text": "run"})
    assert [row.text for row in table.rows] == ["run"]
    assert _codes(table)[0] in ("bad_text", "empty_prompt", "bad_encoding")


def test_openai_batch_lines(tmp_path):
    def line(custom_id, **body):
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/motions", "body": body}

    parts = [{"type": "text", "text": "hop"}, {"type": "text", "text": "twice"}]
    table = _lines(
        tmp_path,
        line("a", text="walk", num_frames=60, seeds=[1]),
        line("b", prompt="run", duration=2.0),
        line("c", input="jump", model="m"),
        line(
            "d", messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "sit"}]
        ),
        line("e", messages=[{"role": "user", "content": parts}]),
        line("f", messages=[]),
        line("g"),
        {"custom_id": "h", "body": [1]},
        {"custom_id": "i", "text": "kick"},
        {"custom_id": "j", "body": '{"text": "bow"}'},
    )
    assert [(row.prompt_id, row.text, row.num_frames) for row in table.rows] == [
        ("a", "walk", 60),
        ("b", "run", 60),
        ("c", "jump", 150),
        ("d", "sit", 150),
        ("e", "hop twice", 150),
        ("i", "kick", 150),
        ("j", "bow", 150),
    ]
    assert table.rows[0].seeds == (1,)
    assert _codes(table) == ["bad_body", "empty_prompt", "bad_body"]
    assert table.warnings == ()


def test_unknown_columns_are_warned_of_once_with_the_nearest_name(tmp_path):
    table = _lines(tmp_path, *({"text": "walk", "num_frame": 60, "colour": 1} for _ in range(5)))
    assert len(table.warnings) == 2
    assert "'num_frame'" in table.warnings[0]
    assert "did you mean 'num_frames'?" in table.warnings[0]


def test_a_row_without_a_text_names_what_it_has(tmp_path):
    table = _lines(tmp_path, {"sentence": "walk", "id": 1})
    assert _codes(table) == ["no_text_column"]
    assert "'sentence', 'id'" in table.rejects[0].message


def test_a_document_that_cannot_be_decoded_raises_for_the_reader(tmp_path):
    path = tmp_path / "p.json"
    path.write_text("[1")
    (file,) = list_prompt_files(path, lambda _: None)
    with pytest.raises(PromptError, match="not JSON"):
        list(prompt_json._entries(file))
