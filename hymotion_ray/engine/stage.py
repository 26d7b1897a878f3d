"""A stage of a batch pipeline: a chunk in, a chunk out. Ray-free; knows no file and no model.

A chunk is the unit of work that travels: a small Arrow table with one row an item, and named
tensors that belong to those rows. An item that failed carries its `error_code` and `error`, and
later stages pass it by, so that one bad item never stops its mates. A stage that cannot tell which
item it failed on raises; whoever runs it then tries the items in smaller chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
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

    def with_all_failed(self, code: str, text: str) -> Chunk:
        """A copy in which every living item carries (code, text), without tensors."""
        return self.with_errors(dict.fromkeys(self.alive, (code, text))).with_tensors({})

    def split(self, num_parts: int) -> list[Chunk]:
        """The items in up to `num_parts` chunks, in order, without tensors and columns added since.

        Meant for a chunk as it entered the pipeline, whose stages then run again.
        """
        total = self.items.num_rows
        bounds = sorted({total * k // num_parts for k in range(num_parts + 1)})
        return [
            Chunk(key=f"{self.key}.{start}-{stop}", items=self.items.slice(start, stop - start))
            for start, stop in pairwise(bounds)
        ]

    def to_row(self) -> pa.Table:
        """The chunk as a table of one row: key, Arrow IPC bytes, safetensors bytes."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.items.schema) as writer:
            writer.write_table(self.items)
        return pa.table(
            {
                "chunk": pa.array([self.key], pa.string()),
                "items": pa.array([sink.getvalue().to_pybytes()], pa.large_binary()),
                "tensors": pa.array([_pack(self.tensors)], pa.large_binary()),
            }
        )

    @classmethod
    def from_row(cls, table: pa.Table) -> Chunk:
        """The chunk of a table of one row made by `to_row`."""
        assert table.num_rows == 1, f"a chunk is one row, got {table.num_rows}"
        with pa.ipc.open_stream(table["items"][0].as_buffer()) as reader:
            items = reader.read_all()
        return cls(
            key=table["chunk"][0].as_py(),
            items=items,
            tensors=_unpack(table["tensors"][0].as_py()),
        )


def _pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    if not tensors:
        return b""
    import safetensors.torch  # here, so that a process without tensors needs no torch

    return safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()})


def _unpack(packed: bytes) -> dict[str, torch.Tensor]:
    if not packed:
        return {}
    import safetensors.torch

    return safetensors.torch.load(packed)


class Stage(Protocol):
    """One step of a pipeline. `setup` runs once in the process that will run the stage."""

    name: str

    def setup(self) -> None:
        """Load what the calls need: weights, tokenizers, connections."""

    def __call__(self, chunk: Chunk) -> Chunk:
        """One chunk through the stage; items known to fail get an error instead of raising."""
