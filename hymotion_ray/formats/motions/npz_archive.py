"""Npz archives without pickle: the same arrays give the same bytes, and hostile files are refused.

Knows zip and the .npy header. Does not know what the arrays mean.
"""

from __future__ import annotations

import io
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hymotion_ray.errors import InputError

# An hour of AMASS at 120 fps with its markers is 1.5 GB; a motion file of ours is 0.2 MB.
MAX_BYTES = 2 << 30
# Above this size a file that grows by more than this factor is a bomb, not a motion.
LARGE_BYTES = 64 << 20
MAX_RATIO = 100
MAX_MEMBERS = 256
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of the zip format
_UNIX = 3
# What numpy raises on them, its repair of old headers included.
_BAD_HEADER = (ValueError, SyntaxError, TypeError, tokenize.TokenError, MemoryError, RecursionError)
# What zipfile and its decompressors raise on bytes that are not what they say.
_DAMAGE = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError,
    OSError, OverflowError, RuntimeError, ValueError,
)  # fmt: skip


def pack(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """An uncompressed npz of the arrays in their order, with fixed dates: reproducible bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for key, array in arrays.items():
            member = zipfile.ZipInfo(f"{key}.npy", date_time=_EPOCH)
            member.create_system = _UNIX
            member.external_attr = 0o644 << 16
            archive.writestr(member, _npy_bytes(array))
    return buffer.getvalue()


def unpack(content: bytes, name: str) -> dict[str, NDArray[np.generic]]:
    """All arrays of an npz; `InputError`, which starts with `name`, for what is damaged or unsafe.

    Refused: what is not a zip, object arrays (they need pickle), arrays whose header asks for more
    bytes than the member has, members that unpack to more than `MAX_BYTES`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            _check_members(members, name)
            return {member.filename[:-4]: _read_member(archive, member, name) for member in members}
    except _DAMAGE as cause:
        raise InputError(f"{name}: not an npz file, or damaged: {cause}") from cause


def _npy_bytes(array: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    npy.write_array(buffer, little, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _check_members(members: list[zipfile.ZipInfo], name: str) -> None:
    odd = [m.filename for m in members if not m.filename.endswith(".npy")]
    if odd or not members or len(members) > MAX_MEMBERS:
        raise InputError(
            f"{name}: not an npz of arrays: {len(members)} members"
            + (f", among them {odd[0]!r}" if odd else "")
        )
    size, packed = (sum(getattr(m, a) for m in members) for a in ("file_size", "compress_size"))
    if size > MAX_BYTES or (size > LARGE_BYTES and size > MAX_RATIO * packed):
        raise InputError(
            f"{name}: unpacks from {packed} to {size} bytes; at most {MAX_BYTES} bytes are read,"
            f" and above {LARGE_BYTES} at most {MAX_RATIO} times the packed size"
        )


def _read_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str
) -> NDArray[np.generic]:
    """One array, its header checked against the size of the member before anything is allocated."""
    label = f"{name}: `{member.filename[:-4]}`"
    with archive.open(member) as file:
        try:
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise InputError(f"{label} has npy version {version}; allowed: 1.0, 2.0")
            read_header = (
                npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            )
            shape, fortran, dtype = read_header(file)
        except _BAD_HEADER as cause:
            raise InputError(f"{label} has a damaged header: {cause}") from cause
        if dtype.hasobject:
            raise InputError(f"{label} holds Python objects, which need pickle and are not read")
        num_bytes = dtype.itemsize
        for length in shape:
            num_bytes *= length
        if any(length < 0 for length in shape) or not 0 <= num_bytes <= member.file_size:
            raise InputError(f"{label} says shape {shape} of {dtype}, more than the file holds")
        data = file.read(num_bytes + 1)
    if len(data) != num_bytes:
        raise InputError(f"{label} holds {len(data)} bytes; its header says {num_bytes}")
    array = np.frombuffer(data, dtype=dtype) if num_bytes else np.zeros(0, dtype=dtype)
    return array.reshape(shape, order="F" if fortran else "C")
