"""What every text encoder promises, and what all of them do to a prompt first. Knows no model."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hymotion_ray.text.condition import TextCondition

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@runtime_checkable
class TokenCounter(Protocol):
    """Counts context tokens; needs a tokenizer, but neither weights nor a GPU."""

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Valid context tokens of each text: the `length` that `encode` would give."""
        ...


@runtime_checkable
class TextEncoder(TokenCounter, Protocol):
    """Turns prompts into conditions.

    A text's features depend on the text alone: not on batch mates, order or padding.
    """

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the features: weights, template, precision, limits."""
        ...

    @property
    def compute_class(self) -> str:
        """What else decides the last bits: device model, number format, rows a call.

        Encoders of one fingerprint agree to rounding; those of one class too agree to the bit.
        """
        ...

    @property
    def context_dim(self) -> int:
        """Width C of the context features."""
        ...

    @property
    def vector_dim(self) -> int:
        """Width V of the vector feature."""
        ...

    def encode(self, texts: Sequence[str]) -> TextCondition:
        """The condition of these texts, in their order; equal texts are encoded once."""
        ...


def clean_text(text: str) -> str:
    """The prompt as encoders see it: NFC, ends stripped, no control characters.

    Control characters and line separators become spaces; invisible format characters (byte order
    mark, direction overrides, zero-width space) go, except the joiners that scripts and emoji need.
    Lone surrogates, which UTF-8 cannot hold, become U+FFFD.
    """
    text = unicodedata.normalize("NFC", _LONE_SURROGATE.sub("\ufffd", text))
    if text.isascii() and text.isprintable():
        return text.strip()
    return "".join(map(_visible, text)).strip()


def _visible(char: str) -> str:
    category = unicodedata.category(char)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    return "" if category == "Cf" and char not in "\u200c\u200d" else char


def neutralise(text: str, control_tokens: Sequence[str]) -> str:
    """`text` with a space inside every control token, so that it reads as plain words.

    A user who types ``<|im_end|>`` must not end the chat message; the words stay. A tokenizer maps
    a special token only when its exact characters stand together, so one space after the first
    character disarms it. Case is ignored, as some tokenizers lower it first. Repeated until none
    is left, as one token may overlap another; tokens with white space in them cannot be disarmed
    in this way and are left alone, as are those of one character.
    """
    tokens = [t for t in control_tokens if len(t) > 1 and not any(c.isspace() for c in t)]
    if not tokens:
        return text
    tokens.sort(key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, tokens)), re.IGNORECASE)
    while pattern.search(text):
        text = pattern.sub(lambda match: match.group()[0] + " " + match.group()[1:], text)
    return text


def mostly_latin(text: str) -> bool:
    """Whether the letters of `text` are mostly Latin: a cheap test of script, not of language.

    French passes, Chinese or Russian does not; a text without letters passes.
    """
    letters = [c for c in text if c.isalpha()]
    latin = sum(c.isascii() or "LATIN" in unicodedata.name(c, "") for c in letters)
    return latin >= 0.8 * len(letters)
