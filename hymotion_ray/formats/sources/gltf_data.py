"""The data of a GLB file: its JSON, and accessors as arrays (glTF 2.0, sections 3.6 and 4.4).

Knows component types, strides and normalised integers, and checks every count against the bytes
that are there. Does not know nodes and animations.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.errors import SourceError

_MAX_JSON_BYTES = 64 << 20
_COMPONENTS = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT4": 16}


class Glb:
    """A parsed GLB: `document` is its JSON object."""

    def __init__(self, content: bytes) -> None:
        if len(content) < 20 or content[:4] != b"glTF":
            raise SourceError("not a GLB file: it does not start with glTF", "bad_syntax")
        json_length, json_type = struct.unpack_from("<I4s", content, 12)
        end = 20 + json_length
        if json_type != b"JSON" or json_length > _MAX_JSON_BYTES or end > len(content):
            raise SourceError("the JSON chunk does not fit into the file: cut off", "truncated")
        try:
            self.document: dict[str, Any] = json.loads(content[20:end])
        except (ValueError, RecursionError) as cause:
            raise SourceError(f"the JSON chunk is damaged: {cause}", "bad_syntax") from cause
        if not isinstance(self.document, dict):
            raise SourceError("the JSON chunk is no object", "bad_syntax")
        self._lists: dict[str, list[dict[str, Any]]] = {}
        self._blob = memoryview(b"")
        if len(content) >= end + 8:
            (length,) = struct.unpack_from("<I", content, end)
            self._blob = memoryview(content)[end + 8 : end + 8 + length]
            if len(self._blob) != length:
                raise SourceError("the binary chunk is cut off", "truncated")

    def items(self, key: str) -> list[dict[str, Any]]:
        """A top-level list of objects, empty where there is none; checked once."""
        if key in self._lists:
            return self._lists[key]
        found = self.document.get(key, [])
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise SourceError(f"`{key}` is no list of objects", "bad_syntax")
        self._lists[key] = found
        return found

    def accessor(self, index: int) -> NDArray[np.float64]:
        """An accessor's values (count, width) as numbers, normalised integers as -1 to 1."""
        try:
            return self._accessor(self.items("accessors")[index])
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as cause:
            raise SourceError(f"accessor {index} is damaged: {cause!r}", "bad_syntax") from cause

    def _accessor(self, accessor: dict[str, Any]) -> NDArray[np.float64]:
        if "sparse" in accessor:
            raise SourceError("sparse accessors are not read; save the file without", "unsupported")
        dtype, width = np.dtype(_COMPONENTS[accessor["componentType"]]), _WIDTHS[accessor["type"]]
        count = int(accessor["count"])
        view = self.items("bufferViews")[accessor["bufferView"]]
        if view.get("extensions"):
            raise SourceError("compressed buffers are not read; save it without", "unsupported")
        start = int(view.get("byteOffset", 0)) + int(accessor.get("byteOffset", 0))
        row = dtype.itemsize * width
        stride = int(view.get("byteStride", 0)) or row
        last = start + (count - 1) * stride + row
        if (
            count < 1
            or start < 0
            or stride < row
            or view.get("buffer", 0)
            or last > len(self._blob)
        ):
            raise SourceError(f"an accessor of {count} items lies outside the file", "truncated")
        values = np.lib.stride_tricks.as_strided(
            np.frombuffer(self._blob, dtype=np.uint8, offset=start, count=last - start),
            shape=(count, row),
            strides=(stride, 1),
        )
        table = np.ascontiguousarray(values).view(dtype).astype(np.float64)
        if accessor.get("normalized") and dtype.kind in "iu":
            table = np.maximum(table / np.iinfo(dtype).max, -1.0)
        return table
