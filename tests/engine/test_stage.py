import pyarrow as pa
import pytest
import torch

from hymotion_ray.engine.stage import Chunk, guarded


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


def test_an_exception_fails_the_living_items_and_keeps_the_reason() -> None:
    def explode(chunk: Chunk) -> Chunk:
        raise ValueError("boom")

    chunk = guarded(explode, "sample")(make_chunk().with_errors({0: ("early", "first")}))
    assert chunk.column("error_code") == ["early", "sample_failed", "sample_failed"]
    assert chunk.column("error")[1] == "sample: ValueError: boom"
    assert chunk.tensors == {}


def test_a_chunk_without_living_items_is_not_computed() -> None:
    def explode(chunk: Chunk) -> Chunk:
        raise AssertionError("called")

    dead = make_chunk(1).with_errors({0: ("x", "y")})
    assert guarded(explode, "sample")(dead).column("error_code") == ["x"]


def test_what_is_no_exception_goes_through() -> None:
    def stop(chunk: Chunk) -> Chunk:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(stop, "sample")(make_chunk())
