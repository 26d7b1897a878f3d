"""Column names of tables and JSON objects: which field each one feeds, and which are unknown.

Knows names only; what a value may be stands in `prompt_values`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hymotion_ray.config.fields import nearest
from hymotion_ray.errors import PromptError
from hymotion_ray.formats.prompts.values import is_absent

FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text", "prompt"),
    "prompt_id": ("prompt_id", "id", "custom_id"),
    "num_frames": ("num_frames",),
    "duration": ("duration",),
    "seeds": ("seeds", "seed"),
    "guidance_scale": ("guidance_scale",),
    "num_steps": ("num_steps",),
    "group": ("group",),
}
"""Fields of a row and the column names that feed each one, the preferred name first."""
_FIELD_OF = {name: field for field, names in FIELDS.items() for name in names}
_BODY = "body"
_BODY_TEXTS = ("text", "prompt", "input", "messages")
_REQUEST_KEYS = frozenset(["method", "url", _BODY])  # of an OpenAI batch line, beside custom_id
_BODY_KEYS = frozenset([*_BODY_TEXTS, "model", "temperature", "max_tokens", "stream", "user", "n"])
_OF_EVALUATE = frozenset(["action"])  # of test prompts, which are rendered too
_MAX_WARNED = 100


def is_known(name: str) -> bool:
    """Whether a column of this name is read."""
    return normal(name) in _FIELD_OF or normal(name) in _REQUEST_KEYS


def has_text(names: Sequence[str]) -> bool:
    """Whether one of the columns can hold the sentence."""
    return any(normal(name) in (*FIELDS["text"], _BODY) for name in names)


def normal(name: str) -> str:
    """A column name as it is compared: without case and the blanks around it."""
    return name.strip().lower()


def no_text(names: Sequence[str]) -> PromptError:
    """The error for a table or object without a column for the sentence."""
    shown = ", ".join(repr(name)[:40] for name in names[:20]) or "none"
    return PromptError(
        f"there is no column 'text'; found {shown}; name the column of the sentences 'text'",
        "no_text_column",
    )


class ColumnReader:
    """Takes the fields out of one named row after another; tells of unknown names once each."""

    def __init__(self, file: str, warn: Callable[[str], None]) -> None:
        self._file = file
        self._warn = warn
        self._warned: set[str] = set()

    def check(self, names: Sequence[str]) -> None:
        """Warn of the names among `names` that are not read, each once a file."""
        self._tell(_layout(tuple(names))[1])

    def fields(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a row by their own names; `PromptError` when it says a thing twice."""
        wanted, unknown, requested = _layout(tuple(row))
        if unknown:
            self._tell(unknown)
        fields: dict[str, Any] = {}
        for field, keys in wanted:
            value = row[keys[0]]
            for key in keys[1:]:
                if is_absent(value):
                    value = row[key]
                elif not is_absent(row[key]) and row[key] != value and field != "prompt_id":
                    raise PromptError(
                        f"columns {keys[0]!r} and {key!r} give different values; keep one",
                        "conflicting_columns",
                    )
            fields[field] = value
        if requested is not None:
            self._add_body(fields, row[requested])
        if "text" not in fields:
            raise no_text(tuple(row))
        return fields

    def _add_body(self, fields: dict[str, Any], body: Any) -> None:
        """Fill in what the body of a batch line says; the line's own columns come first."""
        if isinstance(body, str):
            body = _parse(body)
        if is_absent(body):
            return
        if not isinstance(body, Mapping):
            raise PromptError(
                f"body is {type(body).__name__}; allowed: an object with text, prompt, input or "
                "messages",
                "bad_body",
            )
        row = {normal(key): value for key, value in body.items() if value is not None}
        text = next((row.pop(name) for name in _BODY_TEXTS if name in row), None)
        for name, value in row.items():
            field = _FIELD_OF.get(name)
            if field is not None and is_absent(fields.get(field)):
                fields[field] = value
        self._tell(tuple(n for n in row if n not in _FIELD_OF and n not in _BODY_KEYS))
        if is_absent(fields.get("text")):
            fields["text"] = _sentence(text)

    def _tell(self, names: Sequence[str]) -> None:
        for name in names:
            if normal(name) in _OF_EVALUATE:
                continue
            if name not in self._warned and len(self._warned) < _MAX_WARNED:
                self._warned.add(name)
                hint = nearest(normal(name), list(_FIELD_OF))
                self._warn(f"{self._file}: column {name[:40]!r} is not read{hint}")


@functools.lru_cache(maxsize=256)
def _layout(
    names: tuple[str, ...],
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], tuple[str, ...], str | None]:
    """Keys of each field in order of preference, unknown keys, the key of a batch line's body."""
    by_normal: dict[str, str] = {}
    for name in names:
        by_normal.setdefault(normal(name), name)
    wanted = tuple(
        (field, tuple(by_normal[k] for k in keys if k in by_normal))
        for field, keys in FIELDS.items()
        if any(k in by_normal for k in keys)
    )
    known = {key for _, keys in wanted for key in keys}
    # A column without a name is a left-over of a spreadsheet or an index.
    unknown = tuple(n for n in names if n not in known and normal(n) not in {"", *_REQUEST_KEYS})
    return wanted, unknown, by_normal.get(_BODY)


def _parse(body: str) -> Any:
    if not body.strip():
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"body is not JSON ({error})", "bad_body") from error


def _sentence(text: Any) -> Any:
    """The sentence of a body: a string, or the last message of the user in a list of messages."""
    if not isinstance(text, (list, tuple)):
        return text
    users = [m for m in text if isinstance(m, Mapping) and m.get("role") == "user"]
    if not users:
        if len(text) == 1 and isinstance(text[0], str):
            return text[0]  # `input` as a list of one
        raise PromptError("messages hold no message of the role user", "bad_body")
    content = users[-1].get("content")
    if isinstance(content, (list, tuple)):
        parts = [p.get("text") for p in content if isinstance(p, Mapping)]
        return " ".join(part for part in parts if isinstance(part, str))
    return content
