"""Prompts in one .json document: an object of groups, or a list. Read as a stream.

    {"walks": ["A person walks.#90#walk_a", {"text": "A person strolls."}], "jumps": [...]}
    [{"prompt_id": "walk_a", "text": "A person walks.", "duration": 3.0}, ...]

Entries are lines of the .txt form or objects with named fields. The document is read twice: first
to its end, so that one that is cut off or damaged gives one error and no rows, then for its rows.
Entries are parsed one at a time by the json module; memory is bounded by one chunk and one entry of
up to `MAX_ENTRY_CHARS`, whatever the document's size. NaN and Infinity are read, as Python writes
them, and rejected as values of the row that holds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hymotion_ray.errors import PromptError
from hymotion_ray.formats.prompts.columns import ColumnReader
from hymotion_ray.formats.prompts.files import PromptFile
from hymotion_ray.formats.prompts.lines import parse_line
from hymotion_ray.formats.prompts.rows import PromptRow, Reject, RowBuilder
from hymotion_ray.formats.prompts.values import is_absent
from hymotion_ray.formats.streams import iter_chunks, iter_text, open_stream

MAX_ENTRY_CHARS = 1024 * 1024
_BLANKS = " \t\r\n"
_EXPECTED = "allowed: an object of groups, each a list of prompts, or a list of prompts"


def read_json(
    file: PromptFile, rows: RowBuilder, columns: ColumnReader
) -> Iterator[PromptRow | Reject]:
    """The rows of a .json file, numbered from 1 through all groups."""
    for _ in _entries(file):
        pass
    for number, (group, entry) in enumerate(_entries(file), start=1):
        try:
            fields = _fields(entry, columns)
        except PromptError as error:
            yield rows.reject(number, error, entry if isinstance(entry, str) else "")
            continue
        if group is not None and is_absent(fields.get("group")):
            fields["group"] = group
        yield rows.build(number, fields)


def _fields(entry: Any, columns: ColumnReader) -> dict[str, Any]:
    if isinstance(entry, PromptError):
        raise entry
    if isinstance(entry, str):
        return parse_line(entry)
    if isinstance(entry, dict):
        return columns.fields(entry)
    raise PromptError(
        f"entry is {type(entry).__name__}; allowed: a line of text, or an object with a text",
        "bad_row",
    )


def _entries(file: PromptFile) -> Iterator[tuple[str | None, Any]]:
    """(group key or None, entry) one by one; the entry of a group that is no list is its error."""
    with open_stream(file.location, file.compression) as stream:
        document = _Document(iter_text(iter_chunks(stream)))
        first = document.peek()
        if first == "[":
            for entry in document.items():
                yield None, entry
        elif first == "{":
            yield from _groups(document)
        elif first:
            raise PromptError(f"the document starts with {first!r}; {_EXPECTED}", "bad_json")
        else:
            return  # an empty file, like an empty .txt
        if document.peek():
            raise document.error("more text after the end of the document")


def _groups(document: _Document) -> Iterator[tuple[str | None, Any]]:
    document.take("{")
    if document.peek() == "}":
        document.take("}")
        return
    while True:
        if document.peek() != '"':
            raise document.error("expected the name of a group in double quotes")
        group = document.value()
        document.take(":")
        if document.peek() == "[":
            for entry in document.items():
                yield group, entry
        else:
            kind = type(document.value()).__name__
            yield group, PromptError(f"group {group[:40]!r} is {kind}; {_EXPECTED}", "bad_group")
        if document.take(",}") == "}":
            return


class _Document:
    """A JSON text that arrives in chunks: a window of it, and a position in that window."""

    def __init__(self, chunks: Iterator[str]) -> None:
        self._chunks = chunks
        self._window = ""
        self._at = 0
        self._num_lines = 1  # of the whole document, up to the window's start
        self._ended = False
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that is not blank, or `""` at the end."""
        while True:
            while self._at < len(self._window):
                if self._window[self._at] not in _BLANKS:
                    return self._window[self._at]
                self._at += 1
            if not self._more():
                return ""

    def take(self, allowed: str) -> str:
        """Go past the next character, which must be one of `allowed`."""
        char = self.peek()
        if not char or char not in allowed:
            raise self.error(f"expected {' or '.join(allowed)}")
        self._at += 1
        return char

    def items(self) -> Iterator[Any]:
        """The entries of the list that starts here, one by one."""
        self.take("[")
        if self.peek() == "]":
            self.take("]")
            return
        while True:
            yield self.value()
            if self.take(",]") == "]":
                return

    def value(self) -> Any:
        """The value that starts here, whole."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._window, self._at)
            except json.JSONDecodeError as error:
                failure = error.msg
            except (ValueError, RecursionError) as error:  # thousands of digits, deep nesting
                raise self.error(f"a value cannot be read ({error})") from error
            else:
                # A number at the window's end may go on in the next chunk (`1`, `1.`, `1e-`).
                if end + 2 < len(self._window) or not self._more():
                    self._at = end
                    return value
                continue
            if len(self._window) - self._at > MAX_ENTRY_CHARS:
                raise self.error(f"{failure}, or an entry of over {MAX_ENTRY_CHARS} characters")
            if not self._more():
                raise self.error(failure)

    def error(self, what: str) -> PromptError:
        """The error for what stands at this position."""
        line = self._num_lines + self._window.count("\n", 0, self._at)
        return PromptError(
            f"the file is not JSON from line {line} on: {what}; none of it was used", "bad_json"
        )

    def _more(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._num_lines += self._window.count("\n", 0, self._at)
        self._window = self._window[self._at :] + chunk
        self._at = 0
        return True
