"""Prompts a line each: the .txt form, with length and id at the end of the line, and .jsonl.

    A person walks.#90#walk_a     90 frames, id walk_a
    A person walks.##walk_a       default length, id walk_a
    A person walks.#90            90 frames, id from the file's name and the line
    A person walks to house #5.   no fields: every `#` belongs to the sentence

An empty id counts as none. What looks like a length but is not one is an error, not a sentence: a
bare number below `LEAST_BARE_FRAMES` at the end, or a number with a sign, fraction or unit where
the length stands. A line that cannot be read is one reject; the next lines go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hymotion_ray.errors import PromptError
from hymotion_ray.formats.prompts.columns import ColumnReader
from hymotion_ray.formats.prompts.files import PromptFile
from hymotion_ray.formats.prompts.rows import PromptRow, Reject, RowBuilder
from hymotion_ray.formats.prompts.values import is_number
from hymotion_ray.formats.streams import iter_chunks, iter_lines, open_stream

LEAST_BARE_FRAMES = 20
"""A bare `#n` below this is more likely the end of a sentence (`I am #1`) than a length."""
_DIGITS = re.compile(r"[0-9]+")
_UNITS = re.compile(r"\s*(?:s|sec|seconds?|f|frames?)$", re.IGNORECASE)
_ADVICE = (
    "write #<whole frames>#<id> at the end of the line, or use a .jsonl file with the fields "
    "text, num_frames or duration, and prompt_id"
)


def read_txt(file: PromptFile, rows: RowBuilder, _: ColumnReader) -> Iterator[PromptRow | Reject]:
    """The rows of a .txt file, blank lines passed over."""
    with open_stream(file.location, file.compression) as stream:
        for line in iter_lines(iter_chunks(stream)):
            text = ""
            try:
                text = line.decode()
                if text.isspace():
                    continue
                fields = parse_line(text)
            except PromptError as error:
                yield rows.reject(line.number, error, text)
            else:
                yield rows.build(line.number, fields)


def read_jsonl(
    file: PromptFile, rows: RowBuilder, columns: ColumnReader
) -> Iterator[PromptRow | Reject]:
    """The rows of a .jsonl file, an object a line, blank lines passed over."""
    with open_stream(file.location, file.compression) as stream:
        for line in iter_lines(iter_chunks(stream)):
            text = ""
            try:
                text = line.decode()
                if text.isspace():
                    continue
                fields = columns.fields(_parse_object(text))
            except PromptError as error:
                yield rows.reject(line.number, error, text)
            else:
                yield rows.build(line.number, fields)


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise PromptError(
            f"line is not JSON ({error.msg} at column {error.colno}); write one object a line",
            "bad_json",
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
        raise PromptError(f"line is not usable JSON ({error})", "bad_json") from error
    if not isinstance(value, dict):
        raise PromptError(
            f"line holds {type(value).__name__}; allowed: an object such as "
            '{"prompt_id": "walk_a", "text": "A person walks.", "num_frames": 90}',
            "bad_row",
        )
    return value


def parse_line(line: str) -> dict[str, Any]:
    """The fields of one line: text, and where given num_frames and prompt_id.

    Raises `PromptError` (`ambiguous_length`) for an ending that may be a length or a sentence.
    """
    line = line.strip()
    head, mark, last = line.rpartition("#")
    if not mark:
        return {"text": line}
    text, mark, middle = head.rpartition("#")
    if mark:
        if not middle:
            return {"text": text, "prompt_id": last.strip()}
        if _DIGITS.fullmatch(middle):
            return {"text": text, "num_frames": _whole(middle), "prompt_id": last.strip()}
        if is_number(_UNITS.sub("", middle.strip())):
            raise PromptError(
                f"line ends in '#{middle[:40]}#{last[:40]}', whose length is not a whole number "
                f"of frames; {_ADVICE}",
                "ambiguous_length",
            )
    if _DIGITS.fullmatch(last):
        frames = _whole(last)
        if frames < LEAST_BARE_FRAMES:
            raise PromptError(
                f"line ends in '#{last[:40]}', more likely a part of the sentence than a length "
                f"(at least {LEAST_BARE_FRAMES} without an id); {_ADVICE}",
                "ambiguous_length",
            )
        return {"text": head, "num_frames": frames}
    if is_number(last):
        raise PromptError(
            f"line ends in '#{last[:40]}', which is not a whole number of frames; {_ADVICE}",
            "ambiguous_length",
        )
    return {"text": line}


def _whole(digits: str) -> int:
    # Python refuses to read thousands of digits; the first 40 are far too large as well.
    return int((digits.lstrip("0") or "0")[:40])
