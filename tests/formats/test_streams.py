"""Lines and text of files: ends, marks, offsets, whatever the chunks."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymotion_ray.errors import PromptError
from hymotion_ray.formats import streams
from hymotion_ray.formats.streams import iter_chunks, iter_lines, iter_text


def _chunks(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@given(
    parts=st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"walk", "走".encode(), b"\xff"])),
    mark=st.booleans(),
    size=st.integers(1, 7),
)
def test_lines_are_those_of_the_whole_at_their_offsets(parts, mark, size):
    data = (b"\xef\xbb\xbf" if mark else b"") + b"".join(parts)
    start = 3 if mark else 0
    lines = list(iter_lines(_chunks(data, max(size, 3) if mark else size)))
    whole = data.splitlines(keepends=True)
    if whole:
        whole[0] = whole[0][start:]
    assert [line.raw for line in lines] == whole
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        assert line.raw is not None
        assert data[line.offset : line.offset + len(line.raw)] == line.raw


@given(size=st.integers(1, 50), lengths=st.lists(st.integers(0, 60), max_size=8))
def test_long_lines_are_passed_over_and_the_rest_keep_their_places(size, lengths):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "MAX_LINE_BYTES", 20)
        data = b"".join(b"x" * length + b"\r\n" for length in lengths)
        lines = list(iter_lines(_chunks(data, size)))
    assert [line.raw is None for line in lines] == [length + 2 > 20 for length in lengths]
    for index, line in enumerate(lines):
        assert line.offset == sum(lengths[:index]) + 2 * index


@given(text=st.text(st.characters(codec="utf-8")), size=st.integers(1, 5))
def test_text_is_that_of_the_whole(text, size):
    data = text.encode()
    assert "".join(iter_text(_chunks(data, size))) == data.decode("utf-8-sig")


@given(before=st.text(st.characters(codec="utf-8"), max_size=9), size=st.integers(1, 5))
def test_a_bad_byte_is_named_by_its_offset(before, size):
    data = before.encode() + b"\xff"
    with pytest.raises(PromptError, match=f"0xff at offset {len(data) - 1} "):
        list(iter_text(_chunks(data, size)))
    half = before.encode() + "走".encode()[:2]
    with pytest.raises(PromptError, match=f"offset {len(half) - 2} "):
        list(iter_text(_chunks(half, size)))


def test_a_stream_that_gives_little_at_first_is_still_recognised():
    class Slow(io.BytesIO):
        def read(self, size=-1):
            return super().read(1)

    assert b"".join(iter_chunks(Slow(b"walk"))) == b"walk"
    with pytest.raises(PromptError, match="git lfs pull"):
        list(iter_chunks(Slow(b"version https://git-lfs.github.com/spec/v1\n")))
