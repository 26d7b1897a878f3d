"""Prompts in CSV and Parquet."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymotion_ray.formats.prompts import PromptTable, read_prompts


def _csv(folder: Path, text: str | bytes) -> PromptTable:
    path = folder / "p.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_prompts(path)


def _codes(table: PromptTable) -> list[tuple[int, str]]:
    return [(reject.line, reject.code) for reject in table.rejects]


def test_named_columns_in_any_order_and_case(tmp_path):
    table = _csv(
        tmp_path,
        "Num_Frames, TEXT ,custom_id,seeds,guidance_scale,num_steps,group\n"
        "90,walk,a,1 2,3.5,20,g\n"
        ",run,,,,,\n",
    )
    first, second = table.rows
    assert (first.num_frames, first.text, first.prompt_id, first.seeds) == (90, "walk", "a", (1, 2))
    assert (first.guidance_scale, first.num_steps, first.group) == (3.5, 20, "g")
    assert (second.num_frames, second.prompt_id, second.seeds) == (150, "p-3", None)
    assert table.warnings == ()


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ("7", (7,)),
        ("1,2", (1, 2)),
        ("1 2", (1, 2)),
        ("1;2", (1, 2)),
        ("[1, 2]", (1, 2)),
        ("", None),
    ],
)
def test_seeds_of_a_cell(tmp_path, seeds, expected):
    assert _csv(tmp_path, f'text,seeds\nwalk,"{seeds}"\n').rows[0].seeds == expected


def test_quotes_commas_and_line_breaks_within_fields(tmp_path):
    table = _csv(
        tmp_path,
        '\ufefftext,id\r\n"walks, then\r\nruns",a\r\n"says ""hi""", "b"\r\n'
        "\r\n,,\r\n   \r\njumps,c\r\n",
    )
    assert [(row.text, row.prompt_id, row.line) for row in table.rows] == [
        ("walks, then\r\nruns", "a", 2),
        ('says "hi"', "b", 4),
        ("jumps", "c", 8),
    ]
    assert table.rejects == ()


def test_ragged_rows_are_rejected_and_the_next_go_on(tmp_path):
    table = _csv(tmp_path, "id,text\na,walks, then runs\nb\nc,jumps\n")
    assert [row.prompt_id for row in table.rows] == ["c"]
    assert _codes(table) == [(2, "ragged_row"), (3, "ragged_row")]
    assert "double quotes" in table.rejects[0].message


def test_an_open_quote_costs_one_row_not_the_rest(tmp_path):
    rows = "".join(f"id{n},walk {n}\n" for n in range(3000))
    table = _csv(tmp_path, 'id,text\na,"open quote\n' + rows + 'b,"one "quote" more"\nz,end\n')
    assert len(table.rows) == 3001
    assert (table.rows[0].line, table.rows[-1].prompt_id) == (3, "z")
    assert [reject.line for reject in table.rejects] == [2, 3003]
    wide = "".join(f"id{n},{'walk ' * 40}{n}\n" for n in range(3000))  # beyond the field limit
    assert len(_csv(tmp_path, 'id,text\na,"open quote\n' + wide).rows) == 3000


def test_a_bad_byte_costs_one_row(tmp_path):
    table = _csv(tmp_path, b"id,text\na,walk\nb,r\xe9n\nc,jump\n")
    assert [row.prompt_id for row in table.rows] == ["a", "c"]
    assert _codes(table) == [(3, "bad_encoding")]
    assert "offset 18 " in table.rejects[0].message


def test_nul_bytes_and_endless_lines_cost_one_row(tmp_path):
    table = _csv(tmp_path, b"text\nwa\0lk\n" + b"x" * 2_000_000 + b"\nrun\n")
    assert [(row.text, row.line) for row in table.rows] == [("run", 4)]
    assert _codes(table) == [(2, "bad_text"), (3, "line_too_long")]


@pytest.mark.parametrize("header", ["sentence,id", "A person walks forward", "a;b"])
def test_a_table_without_a_text_column_names_what_it_has(tmp_path, header):
    table = _csv(tmp_path, f"{header}\nwalk,1\n")
    assert _codes(table) == [(0, "no_text_column")]
    assert header.split(",")[0] in table.rejects[0].message


def test_a_header_that_names_a_column_twice(tmp_path):
    assert _codes(_csv(tmp_path, "text,id,TEXT\nwalk,1,run\n")) == [(0, "duplicate_column")]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_spreadsheets_other_delimiters(tmp_path, delimiter):
    table = _csv(tmp_path, delimiter.join(["id", "text"]) + f"\na{delimiter}walks, then runs\n")
    assert table.rows[0].text == "walks, then runs"


def test_unknown_columns_and_nameless_ones(tmp_path):
    table = _csv(tmp_path, ",text,num_frame,\n0,walk,60,\n1,run,60,\n")
    assert len(table.rows) == 2
    assert len(table.warnings) == 1
    assert "did you mean 'num_frames'?" in table.warnings[0]


@given(
    rows=st.lists(
        st.tuples(
            st.text("abc123", min_size=1, max_size=5),
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
        ),
        max_size=6,
        unique_by=lambda row: row[0],
    )
)
def test_what_csv_writes_is_read_back(tmp_path_factory, rows):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["id", "text"])
    writer.writerows((prompt_id, f"walk {sentence} end") for prompt_id, sentence in rows)
    table = _csv(tmp_path_factory.mktemp("csv"), text.getvalue())
    assert table.rejects == ()
    assert {row.prompt_id: row.text for row in table.rows} == {
        prompt_id: f"walk {sentence} end" for prompt_id, sentence in rows
    }


# --- Parquet --------------------------------------------------------------------------------------


def _parquet(folder: Path, columns: dict[str, object], name: str = "p.parquet") -> PromptTable:
    pq.write_table(pa.table(columns), folder / name)
    return read_prompts(folder / name)


def test_parquet_columns(tmp_path):
    table = _parquet(
        tmp_path,
        {
            "id": pa.array([1, 2, 3]),
            "text": pa.array(["walk", "run", "jump"]).dictionary_encode(),
            "num_frames": pa.array([60.0, None, 90.0]),
            "seeds": pa.array([[1, 2], None, [3]]),
            "group": pa.array(["g", None, ""]),
            "notes": pa.array([b"x" * 100] * 3),
        },
        "P.PARQUET",
    )
    assert [(r.prompt_id, r.num_frames, r.seeds, r.group, r.line) for r in table.rows] == [
        ("1", 60, (1, 2), "g", 1),
        ("2", 150, None, "", 2),
        ("3", 90, (3,), "", 3),
    ]
    assert len(table.warnings) == 1
    assert "'notes'" in table.warnings[0]


def test_parquet_of_wrong_types_rejects_row_by_row(tmp_path):
    assert _codes(_parquet(tmp_path, {"text": [1, 2]})) == [(1, "bad_text"), (2, "bad_text")]
    days = pa.array([datetime.date(2024, 1, 1), None])
    table = _parquet(tmp_path, {"text": ["walk", "run"], "num_frames": days})
    assert _codes(table) == [(1, "bad_length")]
    prices = pa.array([decimal.Decimal("60.00"), decimal.Decimal("60.50")])
    table = _parquet(tmp_path, {"text": ["walk", "run"], "num_frames": prices})
    assert [row.num_frames for row in table.rows] == [60]
    table = _parquet(tmp_path, {"text": ["walk"] * 3, "num_frames": [np.nan, np.inf, 60.5]})
    assert _codes(table) == [(n, "bad_length") for n in (1, 2, 3)]


def test_parquet_text_as_bytes(tmp_path):
    table = _parquet(tmp_path, {"text": pa.array(["走".encode(), b"\xff", b"run"])})
    assert [row.text for row in table.rows] == ["走", "run"]
    assert _codes(table) == [(2, "bad_encoding")]


def test_parquet_string_that_is_not_utf8_costs_one_row(tmp_path):
    raw = pa.array([b"walk", b"r\xffn", b"jump"])
    broken = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    table = _parquet(tmp_path, {"text": broken})
    assert [(row.text, row.line) for row in table.rows] == [("walk", 1), ("jump", 3)]
    assert _codes(table) == [(2, "bad_encoding")]


def test_parquet_without_text_empty_and_cut_off(tmp_path):
    assert _codes(_parquet(tmp_path, {"sentence": ["walk"]})) == [(0, "no_text_column")]
    empty = _parquet(tmp_path, {"text": pa.array([], pa.string())})
    assert (empty.rows, empty.rejects) == ((), ())
    path = tmp_path / "p.parquet"
    path.write_bytes(path.read_bytes()[:-8])
    assert _codes(read_prompts(path)) == [(0, "unreadable_file")]


def test_parquet_batch_lines(tmp_path):
    bodies = [{"text": "walk", "num_frames": 60}, {"text": "run", "num_frames": None}]
    table = _parquet(tmp_path, {"custom_id": ["a", "b"], "body": bodies})
    assert [(r.prompt_id, r.text, r.num_frames) for r in table.rows] == [
        ("a", "walk", 60),
        ("b", "run", 150),
    ]


def test_parquet_with_a_damaged_column_name(tmp_path):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"text": ["walk"], "notes": ["x"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"notes", b"n\xffets"))
    (tmp_path / "q.txt").write_text("run\n")
    table = read_prompts(tmp_path)
    assert [reject.code for reject in table.rejects] == ["unreadable_file"]
    assert [row.text for row in table.rows] == ["run"]


def test_evaluates_test_prompts_are_prompts(tmp_path):
    table = _csv(tmp_path, "prompt,action\nsomeone walks,walk\n")
    assert (table.rows[0].text, table.warnings) == ("someone walks", ())
