"""Reading, checking and overriding dataclass configs. Knows nothing of what the fields mean.

A config is a frozen, keyword-only dataclass whose fields are plain values, tuples of plain values
or other configs. `from_mapping` turns JSON-like mappings into one, `to_mapping` back, `override`
applies `section.field=value` texts.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import numbers
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Union

from hymotion_ray.errors import ConfigError

C = TypeVar("C")
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 200, 200


def require(condition: bool, field: str, value: object, allowed: str) -> None:
    """Raise `ConfigError` that quotes field, value and what is allowed, unless `condition`."""
    if not condition:
        raise ConfigError(f"{field} is {shown(value)}; allowed: {allowed}")


def shown(value: object) -> str:
    """`repr` of any value from outside, cut so that a message stays readable and cheap to make."""
    try:
        return _SHORT.repr(value)[:250]
    except ValueError:  # Python does not print thousands of digits
        return "a number of thousands of digits"


def nearest(name: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, or the list of known names."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}"


def to_mapping(config: Any) -> dict[str, Any]:
    """A JSON-ready mapping of a config, nested configs included."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config) if f.init}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value


def from_mapping(cls: type[C], mapping: Mapping[str, Any], where: str = "config") -> C:
    """Build config `cls` from a mapping.

    Raises `ConfigError` for unknown keys (naming the nearest), missing required keys and values of
    the wrong type; `where` names the source in messages.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where} is {type(mapping).__name__}; allowed: a mapping of fields")
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in mapping:
        if key not in known:
            raise ConfigError(
                f"{where} has the unknown key {shown(key)}{nearest(str(key), list(known))}"
            )
    hints = typing.get_type_hints(cls)
    values = {
        name: coerce(mapping[name], hints[name], f"{where}.{name}")
        for name in known
        if name in mapping
    }
    missing = [
        n
        for n, f in known.items()
        if n not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    return cls(**values)


def coerce(value: Any, hint: Any, where: str) -> Any:
    """`value` as type `hint`, or `ConfigError`.

    Numbers of other libraries become Python's, whole numbers pass for floats; nothing else is
    converted.
    """
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        for option in options:
            if option is type(None):
                continue
            try:
                return coerce(value, option, where)
            except ConfigError as error:
                last = error
        raise last
    if origin is typing.Literal:
        options = typing.get_args(hint)
        require(value in options, where, value, " | ".join(str(o) for o in options))
        return value
    if origin is tuple:
        require(isinstance(value, (list, tuple)), where, value, "a list")
        inner = typing.get_args(hint)[0]
        return tuple(coerce(v, inner, f"{where}[{i}]") for i, v in enumerate(value))
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            return value
        return from_mapping(typing.cast(type, hint), value, where)
    if hint in (int, float) and isinstance(value, bool):
        raise ConfigError(f"{where} is {value!r}; allowed: a number, not true or false")
    if hint is float and isinstance(value, numbers.Real):
        return _as_float(value, where)
    if hint is int and isinstance(value, numbers.Integral):
        return int(value)
    if hint is Any or isinstance(value, hint):
        return value
    raise ConfigError(
        f"{where} is {shown(value)} ({type(value).__name__}); allowed: "
        f"{_WORDS.get(hint, getattr(hint, '__name__', hint))}"
    )


def _as_float(value: numbers.Real, where: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise ConfigError(f"{where} is a number of over 300 digits; allowed: a float") from error


def override(config: C, assignments: Sequence[str]) -> C:
    """A changed copy of `config` after `section.field=value` texts (JSON values or bare words)."""
    for text in assignments:
        path, sep, raw = text.partition("=")
        if not sep:
            raise ConfigError(f"override {text!r} lacks '='; allowed: section.field=value")
        config = _set(config, path.strip().split("."), raw.strip(), path.strip())
    return config


def _parse(raw: str) -> Any:
    try:
        return json.loads(raw)
    except json.JSONDecodeError:
        return raw


def _set(config: Any, path: list[str], raw: str, where: str) -> Any:
    names = [f.name for f in dataclasses.fields(config) if f.init]
    if path[0] not in names:
        raise ConfigError(f"unknown setting {where!r}{nearest(path[0], names)}")
    if len(path) == 1:
        hint = typing.get_type_hints(type(config))[path[0]]
        value = _parse(raw)
        if hint is str and not isinstance(value, str):
            value = raw  # a text that looks like a number, such as workers.num_workers=2
        return dataclasses.replace(config, **{path[0]: coerce(value, hint, where)})
    inner = getattr(config, path[0])
    if not dataclasses.is_dataclass(inner):
        raise ConfigError(f"setting {where!r}: {path[0]!r} is a value, not a section")
    return dataclasses.replace(config, **{path[0]: _set(inner, path[1:], raw, where)})
