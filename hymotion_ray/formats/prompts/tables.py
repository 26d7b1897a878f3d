"""Prompts in tables with named columns: .csv and .parquet. Knows cells, not their meaning.

A CSV is read by physical lines, so that a broken quote or a byte that is not UTF-8 costs one
record: reading goes on at the line after the one where the broken record starts. A field may hold
line breaks and up to 131,072 characters (the csv module's limit). Parquet is read in batches of
`BATCH_ROWS` rows, only the columns that are known; the bound is one row group's compressed pages of
those columns.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hymotion_ray.errors import PromptError
from hymotion_ray.formats.prompts.columns import ColumnReader, has_text, is_known, no_text, normal
from hymotion_ray.formats.prompts.files import PromptFile
from hymotion_ray.formats.prompts.rows import PromptRow, Reject, RowBuilder
from hymotion_ray.formats.streams import Line, iter_chunks, iter_lines, open_stream

BATCH_ROWS = 2048
_DELIMITERS = (",", ";", "\t")


def read_csv(
    file: PromptFile, rows: RowBuilder, columns: ColumnReader
) -> Iterator[PromptRow | Reject]:
    """The rows of a .csv file; the first line that is not blank names the columns.

    The delimiter is the comma, or the semicolon or tab under which the header has a known column.
    """
    with open_stream(file.location, file.compression) as stream:
        lines = iter_lines(iter_chunks(stream))
        first = next((line for line in lines if line.raw is None or line.raw.strip()), None)
        if first is None:
            return
        names, delimiter = _header(first.decode())
        columns.check(names)
        for line, record in _Records(lines, delimiter, len(names)):
            if isinstance(record, PromptError):
                yield rows.reject(line.number, record, _excerpt(line))
                continue
            try:
                fields = columns.fields(dict(zip(names, record, strict=True)))
            except PromptError as error:
                yield rows.reject(line.number, error, _excerpt(line))
            else:
                yield rows.build(line.number, fields)


def _header(text: str) -> tuple[list[str], str]:
    for delimiter in _DELIMITERS:
        try:
            reader = csv.reader([text], delimiter=delimiter, skipinitialspace=True)
            names = [name.strip() for name in next(reader)]
        except csv.Error as error:
            raise PromptError(f"the header is not CSV ({error})", "bad_csv") from error
        if has_text(names):
            _check_unique(names)
            return names, delimiter
    raise no_text([name.strip() for name in next(csv.reader([text]))])


def _check_unique(names: Sequence[str]) -> None:
    seen = [normal(name) for name in names if normal(name)]
    twice = sorted({name for name in seen if seen.count(name) > 1})
    if twice:
        raise PromptError(
            f"the columns {', '.join(twice)} stand in the header twice; name each once",
            "duplicate_column",
        )


class _Records:
    """Records of a CSV with the line each one starts at; a broken one comes as its error."""

    def __init__(self, lines: Iterator[Line], delimiter: str, num_columns: int) -> None:
        self._lines = lines
        self._delimiter = delimiter
        self._num_columns = num_columns
        self._again: deque[Line] = deque()  # lines to be read again, after a broken record
        self._taken: list[Line] = []  # lines of the record in hand
        self._trouble: PromptError | None = None  # the first line among them without a text

    def __iter__(self) -> Iterator[tuple[Line, list[str] | PromptError]]:
        reader = self._reader()
        while True:
            self._taken.clear()
            self._trouble = None
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield self._taken[0], self._restart(f"record is not CSV ({error})", "bad_csv")
                reader = self._reader()
                continue
            if self._trouble is not None:
                yield self._taken[0], self._trouble
            elif not any(cell.strip() for cell in record):
                continue  # a blank line, or only delimiters
            elif len(record) != self._num_columns:
                message = f"record has {len(record)} fields, the header {self._num_columns}"
                yield self._taken[0], self._restart(message, "ragged_row")
                reader = self._reader()
            else:
                yield self._taken[0], [cell.strip() for cell in record]

    def _restart(self, message: str, code: str) -> PromptError:
        self._again.extendleft(reversed(self._taken[1:]))
        return PromptError(f"{message}; put texts with commas or quotes in double quotes", code)

    def _reader(self) -> Iterator[list[str]]:
        return csv.reader(
            self._feed(), delimiter=self._delimiter, strict=True, skipinitialspace=True
        )

    def _feed(self) -> Iterator[str]:
        while True:
            line = self._again.popleft() if self._again else next(self._lines, None)
            if line is None:
                return
            self._taken.append(line)
            try:
                yield line.decode()
            except PromptError as error:
                self._trouble = self._trouble or error
                yield "\n"


def _excerpt(line: Line) -> str:
    return (line.raw or b"")[:1000].decode("utf-8", "replace")


def read_parquet(
    file: PromptFile, rows: RowBuilder, columns: ColumnReader
) -> Iterator[PromptRow | Reject]:
    """The rows of a .parquet file, numbered from 1."""
    with (
        file.location.filesystem.open_input_file(file.location.path) as source,
        pq.ParquetFile(source) as table,
    ):
        names = table.schema_arrow.names
        if not has_text(names):
            raise no_text(names)
        _check_unique(names)
        columns.check(names)
        wanted = [name for name in names if is_known(name)]
        number = 0
        for batch in table.iter_batches(BATCH_ROWS, columns=wanted):
            for cells in _cells(batch):
                number += 1
                try:
                    if isinstance(cells, PromptError):
                        raise cells
                    fields = columns.fields(cells)
                except PromptError as error:
                    yield rows.reject(number, error)
                else:
                    yield rows.build(number, fields)


def _cells(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | PromptError]:
    try:
        yield from batch.to_pylist()
        return
    except (UnicodeDecodeError, ValueError, OverflowError):
        pass  # one cell that Python cannot hold; find out which
    for index in range(batch.num_rows):
        try:
            yield batch.slice(index, 1).to_pylist()[0]
        except (UnicodeDecodeError, ValueError, OverflowError) as error:
            yield PromptError(f"row holds a value that cannot be read ({error})", "bad_encoding")
