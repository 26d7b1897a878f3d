import pyarrow as pa
import torch

from hymotion_ray.engine.stage import Chunk


def make_chunk(num_items: int = 3) -> Chunk:
    items = pa.table(
        {
            "text": [f"text {i}" for i in range(num_items)],
            "error_code": pa.array([None] * num_items, pa.string()),
            "error": pa.array([None] * num_items, pa.string()),
        }
    )
    return Chunk(key="k", items=items, tensors={"x": torch.randn(4, 2).bfloat16()})


def test_a_chunk_survives_the_trip_as_a_row() -> None:
    chunk = make_chunk()
    back = Chunk.from_row(chunk.to_row())
    assert back.key == "k"
    assert back.items.equals(chunk.items)
    assert torch.equal(back.tensors["x"], chunk.tensors["x"])


def test_a_chunk_without_tensors_survives_the_trip() -> None:
    assert Chunk.from_row(make_chunk().with_tensors({}).to_row()).tensors == {}


def test_chunk_rows_of_unlike_content_have_one_schema() -> None:
    rows = [make_chunk().to_row(), make_chunk(1).with_tensors({}).to_row()]
    assert rows[0].schema == rows[1].schema


def test_errors_take_items_out_of_the_living() -> None:
    chunk = make_chunk().with_errors({1: ("bad", "why")})
    assert chunk.alive == [0, 2]
    assert chunk.column("error") == [None, "why", None]


def test_columns_are_replaced_in_place() -> None:
    chunk = make_chunk().with_columns({"text": pa.array(["a", "b", "c"])})
    assert chunk.column("text") == ["a", "b", "c"]
    assert chunk.items.column_names == ["text", "error_code", "error"]


def test_a_chunk_splits_into_parts_that_are_named_by_what_they_hold() -> None:
    parts = make_chunk(5).split(2)
    assert [p.column("text") for p in parts] == [
        ["text 0", "text 1"],
        ["text 2", "text 3", "text 4"],
    ]
    assert [p.key for p in parts] == ["k.0-2", "k.2-5"]
    assert len(make_chunk(3).split(3)) == 3
    assert len(make_chunk(1).split(2)) == 1


def test_failing_all_leaves_earlier_reasons() -> None:
    chunk = make_chunk().with_errors({0: ("early", "first")}).with_all_failed("late", "second")
    assert chunk.column("error_code") == ["early", "late", "late"]
    assert chunk.tensors == {}
