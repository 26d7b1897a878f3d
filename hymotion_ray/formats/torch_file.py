"""Reading and writing files of `torch.save`, without running anything they hold.

The only place of the project where `torch.load` stands. A torch file is a pickle, and a pickle may
hold any call; here only tensors, plain values and numpy scalars get through (`weights_only=True`
and a short list), so a file that asks for more is refused and nothing of it has run.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hymotion_ray.errors import InputError
from hymotion_ray.formats.local_file import require_file

_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE_MAGIC = b"\x80"
_SCALAR_TYPES = (
    *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64, np.bytes_, np.str_),
)
# What the unpickler may raise on damaged or hostile bytes, apart from the refusal itself.
_BROKEN = (
    *(RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError, AttributeError),
    *(AssertionError, ArithmeticError, MemoryError),
)


def read_torch_file(
    path: Path, *, error: type[InputError] = InputError, arrays: bool = False
) -> Any:
    """The object in a torch file, on the CPU, memory-mapped where the file allows it.

    `arrays` also lets numpy arrays of plain numbers through; numpy scalars always pass. Raises
    `error` for a file that is missing, empty, a Git LFS pointer, truncated, of another format, or
    that names a class or function outside the list.
    """
    require_file(path, error)
    with path.open("rb") as file:
        magic = file.read(4)
    is_zip = magic == _ZIP_MAGIC
    if not is_zip and magic[:1] != _PICKLE_MAGIC:
        raise error(f"{path} is not a torch file (it starts with the bytes {magic!r})")
    if is_zip and not zipfile.is_zipfile(path):
        raise error(_damaged(path, "its zip directory, which stands at the end, is missing"))
    try:
        with torch.serialization.safe_globals(_allowed(arrays)):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as cause:
        raise error(_refused(path, str(cause))) from cause
    except _BROKEN as cause:
        raise error(_damaged(path, f"{type(cause).__name__}: {cause}")) from cause


def write_torch_file(content: Any, path: Path) -> None:
    """Write tensors and plain values with `torch.save`; equal content gives equal bytes."""
    torch.save(content, path)


def _allowed(arrays: bool) -> list[Any]:
    """The numpy callables that rebuild scalars (and arrays), under the names of numpy 1 and 2."""
    allowed: list[Any] = [np.dtype, *(type(np.dtype(kind)) for kind in _SCALAR_TYPES)]
    rebuild = [(np.int64(0).__reduce__()[0], "scalar")]
    if arrays:
        allowed.append(np.ndarray)
        rebuild.append((np.zeros(1).__reduce__()[0], "_reconstruct"))
    for function, name in rebuild:
        allowed += [(function, f"numpy.{core}.multiarray.{name}") for core in ("core", "_core")]
    return allowed


def _refused(path: Path, detail: str) -> str:
    named = re.search(r"GLOBAL (\S+)", detail)
    if named is None:
        return _damaged(path, detail.splitlines()[-1] if detail else "not a pickle of torch")
    return (
        f"{path} was not loaded: it asks for {named.group(1)}, and only tensors, plain values and "
        "numpy scalars are allowed, since loading anything else can run code. Ask for a "
        "safetensors file; or, only if you trust whoever made it, keep its tensors alone, in an "
        f'environment without secrets: python -c "import torch; d = torch.load({str(path)!r}, '
        "weights_only=False, map_location='cpu'); torch.save({'model_state_dict': "
        "d['model_state_dict']}, 'clean.ckpt')\""
    )


def _damaged(path: Path, detail: str) -> str:
    size = path.stat().st_size
    return (
        f"{path} ({size:,} bytes) is damaged or cut short: {detail}. Compare its size and sha256 "
        "with the source's, and copy or download it again"
    )
