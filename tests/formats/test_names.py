"""Names that every file system takes, and that no two ids share."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hymotion_ray.formats.names import (
    MAX_NAME_BYTES,
    SUFFIX_ROOM,
    fold,
    hash_byte,
    safe_group,
    safe_stem,
)

MAX_SEED = 2**63 - 1
HOSTILE = st.text(max_size=12) | st.text("aAéÉßſİıK./\\-_ :*?\0\ud800#~", max_size=8)
RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$) *(\.|$)")


@pytest.mark.parametrize(
    "prompt_id", ["w.1", "001", "walk_a", "p-12", "Clip_7", "走路", "é1", "a..b"]
)
def test_plain_ids_are_their_own_names(prompt_id):
    assert safe_stem(prompt_id, 7) == f"{prompt_id}_s7"


@pytest.mark.parametrize(
    "prompt_id",
    ["a b", "a/b", "..", ".hidden", "-rf", "", "CON", "con.x", "nul.tar", "a\0b", "a\nb", "\ud800",
     "x" * 300, "走" * 300, "e\u0301", "ﬁ", "ſ", "\u212a", "x-0123456789abcdef", "COM¹", "🏃"],
)  # fmt: skip
def test_other_ids_are_cleaned_and_hashed(prompt_id):
    stem = safe_stem(prompt_id, 7)
    assert re.search(r"-[0-9a-f]{16}_s7$", stem)
    _check_component(stem + ".npz")


def _check_component(name: str) -> None:
    assert len(name.encode()) <= MAX_NAME_BYTES
    assert re.fullmatch(r"[\w.-]+", name)
    assert name[0] not in ".-"
    assert name[-1] not in ". "
    assert not RESERVED.match(name)


@given(HOSTILE, st.integers(0, MAX_SEED))
def test_every_stem_is_safe(prompt_id, seed):
    stem = safe_stem(prompt_id, seed)
    assert len(stem.encode()) <= MAX_NAME_BYTES - SUFFIX_ROOM
    _check_component(stem + ".safetensors")


@given(st.lists(st.tuples(HOSTILE, st.integers(0, 20)), unique=True, max_size=30))
def test_stems_are_injective(items):
    stems = [safe_stem(prompt_id, seed) for prompt_id, seed in items]
    assert len(set(stems)) == len(stems)


@given(HOSTILE, st.integers(0, 9))
def test_a_name_given_as_an_id_is_another_name(prompt_id, seed):
    """No id can be chosen so that it takes the name that another id is altered to."""
    stem = safe_stem(prompt_id, seed).removesuffix(f"_s{seed}")
    assert stem == prompt_id or safe_stem(stem, seed) != safe_stem(prompt_id, seed)


@given(HOSTILE, HOSTILE)
def test_names_of_other_case_differ_in_case_only(first, second):
    """What a file system without case takes for one is what `fold` takes for one."""
    a, b = safe_stem(first, 0), safe_stem(second, 0)
    if a.lower() == b.lower() or a.upper() == b.upper():
        assert fold(a) == fold(b)


@given(HOSTILE | st.text("a/.\\", max_size=400))
def test_every_group_is_a_path_below_the_output(group):
    path = safe_group(group)
    assert len(path.encode()) <= 120
    assert (path == "") == (group == "")
    for kind in (PurePosixPath, PureWindowsPath):
        assert not kind(path).is_absolute()
        assert not kind(path).anchor
    root = Path("/out")
    assert (root / path).resolve().is_relative_to(root)
    for level in path.split("/") if path else []:
        _check_component(level)


@given(st.lists(HOSTILE | st.text("ab/.", max_size=300), unique=True, max_size=20))
def test_groups_are_injective(groups):
    assert len({safe_group(group) for group in groups}) == len(groups)


@pytest.mark.parametrize(
    ("group", "path"), [("", ""), ("walk_chn", "walk_chn"), ("a/b", "a/b"), ("v1.5", "v1.5")]
)
def test_plain_groups_are_their_own_folders(group, path):
    assert safe_group(group) == path


@pytest.mark.parametrize(
    "group",
    ["../../x", "/etc", "C:\\x", "a\0", "..", ".", "CON", "a/CON/b", "x.", "x ", "a//b", "a/", "/",
     "w_s0.npz", "a/" * 40, "x" * 500],
)  # fmt: skip
def test_unsafe_groups_are_hashed(group):
    assert re.search(r"-[0-9a-f]{16}(/|$)", safe_group(group))


def test_hash_bytes_spread_and_ignore_case():
    spread = {hash_byte(f"clip_{n}") for n in range(5000)}
    assert len(spread) == 256
    assert hash_byte("Walk") == hash_byte("walk")
