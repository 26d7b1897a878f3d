"""A stage of a batch pipeline: a chunk in, a chunk out. Ray-free; knows no file and no model.

A chunk is the unit of work that travels: a small Arrow table with one row an item, and named
tensors that belong to those rows. An item that failed carries its `error_code` and `error`, and
later stages pass it by, so that one bad item never stops its mates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import safetensors.torch
import torch

ERROR_CODE, ERROR = "error_code", "error"


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Items that go through the pipeline together."""

    key: str
    """Name of the chunk, a function of its items: the same items give the same key."""
    items: pa.Table
    """One row an item; `error_code` is null while the item is alive."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Named tensors of the stage that ran last."""

    @property
    def alive(self) -> list[int]:
        """Indices of the items without an error."""
        return [i for i, code in enumerate(self.items[ERROR_CODE].to_pylist()) if code is None]

    def column(self, name: str) -> list[Any]:
        """A column of the items as Python values."""
        return self.items[name].to_pylist()

    def with_columns(self, columns: Mapping[str, pa.Array]) -> Chunk:
        """A copy with columns added or replaced."""
        items = self.items
        for name, values in columns.items():
            at = items.schema.get_field_index(name)
            items = (
                items.set_column(at, name, values) if at >= 0 else items.append_column(name, values)
            )
        return replace(self, items=items)

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> Chunk:
        """A copy with other tensors."""
        return replace(self, tensors=dict(tensors))

    def with_errors(self, errors: Mapping[int, tuple[str, str]]) -> Chunk:
        """A copy in which the items of the given indices carry (code, message)."""
        if not errors:
            return self
        codes, texts = self.column(ERROR_CODE), self.column(ERROR)
        for index, (code, text) in errors.items():
            codes[index], texts[index] = code, text
        return self.with_columns(
            {ERROR_CODE: pa.array(codes, pa.string()), ERROR: pa.array(texts, pa.string())}
        )

    def to_row(self) -> pa.Table:
        """The chunk as a table of one row: key, Arrow IPC bytes, safetensors bytes."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.items.schema) as writer:
            writer.write_table(self.items)
        packed = safetensors.torch.save({k: v.contiguous() for k, v in self.tensors.items()})
        return pa.table(
            {
                "chunk": pa.array([self.key], pa.string()),
                "items": pa.array([sink.getvalue().to_pybytes()], pa.large_binary()),
                "tensors": pa.array([packed], pa.large_binary()),
            }
        )

    @classmethod
    def from_row(cls, table: pa.Table) -> Chunk:
        """The chunk of a table of one row made by `to_row`."""
        assert table.num_rows == 1, f"a chunk is one row, got {table.num_rows}"
        with pa.ipc.open_stream(table["items"][0].as_buffer()) as reader:
            items = reader.read_all()
        packed = table["tensors"][0].as_py()
        return cls(
            key=table["chunk"][0].as_py(), items=items, tensors=safetensors.torch.load(packed)
        )


class Stage(Protocol):
    """One step of a pipeline. `setup` runs once in the process that will run the stage."""

    name: str

    def setup(self) -> None:
        """Load what the calls need: weights, tokenizers, connections."""

    def __call__(self, chunk: Chunk) -> Chunk:
        """One chunk through the stage; items that fail get an error instead of raising."""


def guarded(stage: Callable[[Chunk], Chunk], name: str) -> Callable[[Chunk], Chunk]:
    """`stage` for which an exception marks the chunk's living items as failed.

    A stage that can tell which item failed says so itself; this is the net below it.
    """

    def run(chunk: Chunk) -> Chunk:
        if not chunk.alive:
            return chunk.with_tensors({})
        try:
            return stage(chunk)
        except Exception as error:  # noqa: BLE001 - whatever a stage raises is the items' failure
            text = f"{name}: {type(error).__name__}: {error}"
            failed = dict.fromkeys(chunk.alive, (f"{name}_failed", text))
            return chunk.with_errors(failed).with_tensors({})

    return run
