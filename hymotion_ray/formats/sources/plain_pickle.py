"""Pickles of plain containers and numpy arrays, read without running what they ask for.

A pickle is a program. This reader carries out only the part of it that builds lists, dicts, tuples,
sets, numbers, texts and numpy arrays; any other class or function that a file names ends the
reading with that name, before anything of it was imported or called. Also reads the arrays that
joblib writes between the opcodes. Does not know what the content means.
"""

from __future__ import annotations

import collections
import io
import math
import pickle  # noqa: TID251  the interpreter only: every import and call it makes is replaced here
import zlib
from typing import Any, ClassVar

import numpy as np

from hymotion_ray.errors import SourceError

_BROKEN = (
    *(pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError),
    *(ArithmeticError, MemoryError, RecursionError, ImportError, AssertionError),
)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bz2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


def read_plain_pickle(content: bytes) -> Any:
    """The object in a pickle's (or joblib file's) bytes.

    `SourceError`: unsafe_pickle names what the file asks for beyond plain data; damaged otherwise.
    """
    kind = next((k for magic, k in _COMPRESSED.items() if content.startswith(magic)), None)
    if kind or _is_zlib(content):
        raise SourceError(
            f"a {kind or 'zlib'}-compressed pickle; save it uncompressed", "compressed"
        )
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except _BROKEN as cause:
        raise SourceError(
            f"not a pickle of plain data, or cut off: {type(cause).__name__}: {cause}", "damaged"
        ) from cause


def _is_zlib(content: bytes) -> bool:
    try:
        zlib.decompressobj().decompress(content[:64], 1)
    except zlib.error:
        return False
    return content[:1] == b"x"


class _ArrayType:
    """Stands for `numpy.ndarray` in a pickle: it can be named, not called."""

    __slots__ = ()


def _no_bytes() -> bytes:
    """What old protocols write for no bytes at all."""
    return b""


class _JoblibArray:
    """Stands for joblib's note that raw array bytes follow."""

    shape: Any = None
    order: Any = None
    dtype: Any = None
    numpy_array_alignment_bytes: Any = None


def _reconstruct(kind: object, _shape: object, _letter: object) -> np.ndarray:
    """An empty array whose state follows; the shape a file gives here is never allocated."""
    if not isinstance(kind, _ArrayType):
        raise SourceError(f"a pickle of arrays of type {kind!r}", "unsafe_pickle")
    return np.empty(0, dtype=np.int8)


def _scalar(dtype: np.dtype, data: bytes) -> Any:
    if not isinstance(dtype, np.dtype) or dtype.hasobject or len(data) != dtype.itemsize:
        raise SourceError("a damaged numpy scalar", "damaged")
    return np.frombuffer(data, dtype=dtype)[0]


def _from_buffer(data: Any, dtype: np.dtype, shape: Any, order: str) -> np.ndarray:
    array = np.frombuffer(bytes(data), dtype=dtype)
    return array.reshape(shape, order="F" if order == "F" else "C")


def _dtype(code: Any, *_flags: Any) -> np.dtype:
    if not isinstance(code, str) or len(code) > 8:
        raise SourceError(f"a numpy type {str(code)[:40]!r}", "unsafe_pickle")
    return np.dtype(code)


def _encode(text: str, codec: str = "latin1") -> bytes:
    if codec.replace("-", "") not in ("latin1", "utf8", "ascii"):
        raise SourceError(f"a text codec {codec!r}", "unsafe_pickle")
    return text.encode(codec)


def _byte_array(*args: Any) -> bytearray:
    if args and not isinstance(args[0], bytes | str | list):
        raise SourceError("a byte array of no bytes", "unsafe_pickle")
    return bytearray(*args)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _ArrayType(),
    ("numpy", "dtype"): _dtype,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("_codecs", "encode"): _encode,
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): _JoblibArray,
}
for _module in ("builtins", "__builtin__"):
    _ALLOWED |= {(_module, kind.__name__): kind for kind in (set, frozenset, complex)}
    _ALLOWED[_module, "bytearray"] = _byte_array
    _ALLOWED[_module, "bytes"] = _no_bytes
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _reconstruct
    _ALLOWED[f"{_core}.multiarray", "scalar"] = _scalar
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _from_buffer
_MAY_HAVE_STATE = (np.ndarray, np.dtype, _JoblibArray)


class _PlainUnpickler(pickle._Unpickler):  # the one in Python, whose steps can be replaced
    """Builds plain data only."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise SourceError(
                f"the pickle asks for {module}.{name}; only plain containers and numpy arrays are"
                " read, since anything else can run code. Nothing of it has run",
                "unsafe_pickle",
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise SourceError("the pickle refers to objects outside of it", "unsafe_pickle")

    def load_build(self) -> None:
        """Give an object its state: arrays, types and joblib's notes only."""
        if not isinstance(self.stack[-2], _MAY_HAVE_STATE):  # type: ignore[attr-defined]
            kind = type(self.stack[-2]).__name__  # type: ignore[attr-defined]
            raise SourceError(f"the pickle sets the state of a {kind}", "unsafe_pickle")
        if isinstance(self.stack[-2], _JoblibArray):  # type: ignore[attr-defined]
            state = self.stack.pop()  # type: ignore[attr-defined]
            self.stack[-1] = self._array_that_follows(state)  # type: ignore[attr-defined]
            return
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build

    def _array_that_follows(self, state: Any) -> np.ndarray:
        """The array whose bytes joblib wrote right here."""
        shape, dtype = tuple(state["shape"]), state["dtype"]
        if not isinstance(dtype, np.dtype) or dtype.hasobject:
            raise SourceError("a joblib array of Python objects", "unsafe_pickle")
        read = self._unframer.file_read  # type: ignore[attr-defined]
        if state.get("numpy_array_alignment_bytes") is not None:
            read(read(1)[0])
        num_bytes = math.prod(shape) * dtype.itemsize
        data = read(num_bytes) if num_bytes >= 0 else b""
        if len(data) != num_bytes:
            raise SourceError("a joblib array is cut off", "truncated")
        array = np.frombuffer(data, dtype=dtype)
        return array.reshape(shape, order="F" if state.get("order") == "F" else "C")
