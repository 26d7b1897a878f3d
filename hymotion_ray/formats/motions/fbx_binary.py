"""The container of binary FBX 7.4: node records with typed properties. Knows bytes, not scenes.

A record is its end offset, number and length of properties, name, properties, child records and,
where it has children, an empty record (Blender Foundation's published notes on the binary format).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

VERSION = 7400
FILE_ID = bytes.fromhex("28b32aebb624ccc2bfc8b02aa92bfcf1")
CREATION_TIME = "1970-01-01 10:00:00:000"
"""What the fixed file id and footer belong to; without a clock a file's bytes stay the same."""
_FOOT_ID = bytes.fromhex("fabcab09d0c8d466b176fb831cf7267e")
_FOOT_MAGIC = bytes.fromhex("f85a8c6adef5d97eece90ce3758f290b")
_EMPTY = bytes(13)
_COMPRESS_ABOVE = 128

Property = bool | int | float | str | bytes | NDArray[np.generic]
_ARRAY_CODES = {"f4": b"f", "f8": b"d", "i4": b"i", "i8": b"l"}


@dataclass(frozen=True)
class Int64:
    """An integer that FBX wants as 64 bits (ids, times); plain `int` is written as 32."""

    value: int


@dataclass
class Record:
    """A node record; `properties` in order, `children` below it."""

    name: str
    properties: Sequence[Property | Int64] = ()
    children: list[Record] = field(default_factory=list)


def encode(records: Sequence[Record]) -> bytes:
    """A whole file of top-level records."""
    content = bytearray(b"Kaydara FBX Binary  \0\x1a\0" + struct.pack("<I", VERSION))
    for record in records:
        content += _record(record, len(content))
    content += _EMPTY + _FOOT_ID + bytes(4)
    content += bytes(16 - len(content) % 16)
    content += struct.pack("<I", VERSION) + bytes(120) + _FOOT_MAGIC
    return bytes(content)


def _record(record: Record, start: int) -> bytes:
    name = record.name.encode("ascii")
    properties = b"".join(_property(value) for value in record.properties)
    body = bytearray(properties)
    begin = start + 13 + len(name)
    for child in record.children:
        body += _record(child, begin + len(body))
    if record.children or not record.properties:
        body += _EMPTY
    end = begin + len(body)
    head = struct.pack("<IIIB", end, len(record.properties), len(properties), len(name))
    return head + name + bytes(body)


def _property(value: Property | Int64) -> bytes:
    if isinstance(value, Int64):
        return b"L" + struct.pack("<q", value.value)
    if isinstance(value, bool):
        return b"C" + struct.pack("<?", value)
    if isinstance(value, int):
        return b"I" + struct.pack("<i", value)
    if isinstance(value, float):
        return b"D" + struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode("utf-8")
        return b"S" + struct.pack("<I", len(text)) + text
    if isinstance(value, bytes):
        return b"R" + struct.pack("<I", len(value)) + value
    return _array(value)


def _array(array: NDArray[np.generic]) -> bytes:
    flat = np.ascontiguousarray(array).reshape(-1)
    data = flat.astype(flat.dtype.newbyteorder("<")).tobytes()
    packed = zlib.compress(data, 1) if len(data) > _COMPRESS_ABOVE else data
    is_packed = len(data) > _COMPRESS_ABOVE
    code = _ARRAY_CODES[flat.dtype.str[1:]]
    return code + struct.pack("<III", len(flat), int(is_packed), len(packed)) + packed
