"""File and folder names that every file system and object store takes.

Knows ids, seeds and group keys; never the prompt, so that no sentence ends up in a path. An id
that is already safe is its own name; any other is cleaned and gets a hash of the whole id, so
that two different ids never share a name. Case is kept: ids that differ in case alone give names
that differ in case alone, which `fold` makes equal for those who must tell them apart.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

MAX_NAME_BYTES = 120
"""UTF-8 bytes of a file name, its suffix included."""
SUFFIX_ROOM = 16
"""Bytes kept free for `.npz`, `.safetensors` and their like."""
MAX_GROUP_BYTES = 120
MAX_GROUP_DEPTH = 8
_HASH_DIGITS = 16  # 64 bits: two of a million altered ids collide with probability 3e-8
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_HASHED = re.compile(r"-[0-9a-f]{16}$")
_CLIP_NAME = re.compile(r"_s[0-9]+\.")
_RESERVED = frozenset(
    ["CON", "PRN", "AUX", "NUL"] + [f"{port}{n}" for port in ("COM", "LPT") for n in range(10)]
)


def safe_stem(prompt_id: str, seed: int) -> str:
    """The file name of one clip without its suffix, `<id>_s<seed>`.

    At most `MAX_NAME_BYTES - SUFFIX_ROOM` bytes in UTF-8. Different (id, seed) give different
    stems (up to a collision of 64-bit hashes). `seed` is a whole number, at least 0.
    """
    tail = f"_s{seed}"
    return _component(prompt_id, MAX_NAME_BYTES - SUFFIX_ROOM - len(tail)) + tail


def safe_group(group: str) -> str:
    """The sub-folder of a group, relative and with `/` between levels; `""` for no group.

    Always below the folder it is joined to: levels such as `..`, an empty one, a drive letter or a
    device name of Windows are altered and hashed. Different groups give different sub-folders.
    """
    if not group:
        return ""
    levels = group.split("/")
    path = "/".join(_level(level) for level in levels)
    if len(levels) <= MAX_GROUP_DEPTH and len(path.encode()) <= MAX_GROUP_BYTES:
        return path
    return _hashed(group, group, MAX_GROUP_BYTES)


def fold(name: str) -> str:
    """`name` as a file system that ignores case and Unicode form compares it."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def hash_byte(prompt_id: str) -> str:
    """Two hex digits that spread ids evenly over 256 folders."""
    return _digest(fold(prompt_id))[:2]


def _level(level: str) -> str:
    # A folder must not be able to take the place of a clip's file.
    if _CLIP_NAME.search(level) or level.endswith("."):
        return _hashed(level, level, MAX_GROUP_BYTES)
    return _component(level, MAX_GROUP_BYTES)


def _component(text: str, max_bytes: int) -> str:
    if _is_safe(text) and len(text.encode()) <= max_bytes:
        return text
    return _hashed(text, text, max_bytes)


def _is_safe(text: str) -> bool:
    """Whether `text` may be a name as it stands; one that looks hashed may not."""
    if not text.isascii():
        # Normal forms and case of the letter must be settled, so that every system agrees on it.
        if unicodedata.normalize("NFKC", text) != text:
            return False
        text = "".join("x" if _is_plain_letter(c) else c for c in text)
    if _PLAIN.fullmatch(text) is None or _HASHED.search(text):
        return False
    return text.partition(".")[0].upper() not in _RESERVED


def _is_plain_letter(char: str) -> bool:
    """A letter or digit beyond ASCII, in both cases, whose cases map to each other one to one."""
    lower, upper = char.lower(), char.upper()
    return (
        char.isalnum()
        and lower == char.casefold()
        and lower.upper() == upper
        and len(lower) == len(upper) == 1
        and lower > "\x7f"
        and upper > "\x7f"
    )


def _hashed(text: str, whole: str, max_bytes: int) -> str:
    """`text` cleaned, cut to fit, and `-<hash of whole>`; never equal to a name left as it was."""
    clean = "".join(
        c if _PLAIN.fullmatch("x" + c) or _is_plain_letter(c) else "_"
        for c in unicodedata.normalize("NFKC", text[:max_bytes])
    )
    room = max_bytes - _HASH_DIGITS - 1
    clean = clean.encode()[:room].decode("utf-8", "ignore").lstrip(".-")
    if clean.partition(".")[0].upper() in _RESERVED or not clean:
        clean = ("_" + clean)[:room]
    return f"{clean}-{_digest(whole)[:_HASH_DIGITS]}"


def _digest(text: str) -> str:
    # Lone surrogates cannot be UTF-8, yet a name must come out for every id.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
