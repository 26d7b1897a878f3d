"""Finds the files behind paths, folders, globs and URLs, and opens them as streams of lines.

Knows file suffixes, compression, encodings and byte offsets. Knows nothing of what a line means.
Memory is bounded by one chunk and one line, whatever the file's size.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from hymotion_ray.errors import PromptError
from hymotion_ray.formats.locations import Location

CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = 1024 * 1024
"""A longer line is not a prompt: it is passed over unread and reported."""
_MAGIC_BYTES = 32
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_OTHER_KINDS = {
    b"\xff\xfe": "UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\x1f\x8b": "gzip data; let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "zstd data; let its name end in .zst",
    b"PAR1": "Parquet; let its name end in .parquet",
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it or save it as CSV",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself; run `git lfs pull`",
}


class Line(NamedTuple):
    """One line of a file as it lies there, its end included."""

    number: int
    """Counted from 1, blank lines included."""
    offset: int
    """Bytes before it in the (decompressed) file."""
    raw: bytes | None
    """None when the line is longer than `MAX_LINE_BYTES`."""

    def decode(self) -> str:
        """The line as text; `PromptError` names the byte offset of what is not UTF-8."""
        if self.raw is None:
            raise PromptError(
                f"line is longer than {MAX_LINE_BYTES} bytes; allowed: up to that length",
                "line_too_long",
            )
        try:
            return self.raw.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(self.offset + error.start, self.raw[error.start]) from error


def not_utf8(offset: int, byte: int) -> PromptError:
    """The error for a byte that is not UTF-8 at a byte offset of the (decompressed) file."""
    return PromptError(
        f"byte 0x{byte:02x} at offset {offset} is not UTF-8; save the file as UTF-8",
        "bad_encoding",
    )


@contextlib.contextmanager
def open_stream(location: Location, compression: str | None) -> Iterator[pa.NativeFile]:
    """The bytes of a file, decompressed (`gzip`, `zstd`, several members too), for reading forward.

    Raises `OSError` when it cannot be opened, and while reading when it is cut off or damaged.
    """
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(
            location.filesystem.open_input_stream(location.path, compression=None)
        )
        if compression is not None:
            stream = stack.enter_context(pa.CompressedInputStream(stream, compression))
        yield stream


def iter_chunks(stream: pa.NativeFile) -> Iterator[bytes]:
    """The stream in chunks of up to `CHUNK_BYTES`.

    Raises `PromptError` when the first bytes are those of another kind of file.
    """
    chunk = stream.read(CHUNK_BYTES)
    while chunk and len(chunk) < _MAGIC_BYTES:
        more = stream.read(CHUNK_BYTES)
        if not more:
            break
        chunk += more
    for magic, kind in _OTHER_KINDS.items():
        if chunk.startswith(magic):
            raise PromptError(f"the file is {kind}", "wrong_kind")
    while chunk:
        yield chunk
        chunk = stream.read(CHUNK_BYTES)


def iter_lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    r"""Lines that end in `\n`, `\r\n` or a lone `\r`, each with its end; a byte order mark goes."""
    number, offset, carry = 1, 0, b""
    lost = 0  # bytes passed over of a line that is too long
    for chunk in chunks:
        pieces = (carry + chunk).splitlines(keepends=True)
        # The last piece may go on in the next chunk; a last "\r" may be half of "\r\n".
        carry = b"" if pieces[-1].endswith(b"\n") else pieces.pop()
        for piece in pieces:
            yield _line(number, offset, piece, lost)
            offset += lost + len(piece)
            number, lost = number + 1, 0
        if len(carry) > MAX_LINE_BYTES:
            lost += len(carry) - 1
            carry = carry[-1:]
    if carry:
        yield _line(number, offset, carry, lost)


def _line(number: int, offset: int, piece: bytes, lost: int) -> Line:
    if lost or len(piece) > MAX_LINE_BYTES:
        return Line(number, offset, None)
    if number == 1 and piece.startswith(codecs.BOM_UTF8):
        return Line(number, offset + 3, piece[3:])
    return Line(number, offset, piece)


def iter_text(chunks: Iterable[bytes]) -> Iterator[str]:
    """Chunks decoded as UTF-8, without a byte order mark; a `PromptError` names a bad byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    num_read = 0
    for chunk in itertools.chain(chunks, [b""]):
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise not_utf8(num_read - pending + error.start, error.object[error.start]) from error
        yield text.removeprefix("\ufeff") if num_read == 0 else text
        num_read += len(chunk)
