"""What every text encoder promises, and what all of them do to a prompt first. Knows no model."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hymotion_ray.text.condition import TextCondition


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
    """The prompt as encoders see it: NFC, control characters turned to spaces, ends stripped.

    Lone surrogates (broken input that UTF-8 cannot hold) become U+FFFD.
    """
    text = text.encode("utf-8", "replace").decode("utf-8") if _has_surrogate(text) else text
    text = unicodedata.normalize("NFC", text)
    return "".join(" " if unicodedata.category(c) == "Cc" else c for c in text).strip()


def neutralise(text: str, control_tokens: Sequence[str]) -> str:
    """`text` with a space inside every control token, so that it reads as plain words.

    A user who types ``<|im_end|>`` must not end the chat message; the words stay. A tokenizer maps
    a special token only when its exact characters stand together, so one space after the first
    character disarms it. Repeated until none is left, as a removal may form another.
    """
    if not control_tokens:
        return text
    pattern = re.compile(
        "|".join(re.escape(t) for t in sorted(control_tokens, key=len, reverse=True))
    )
    while pattern.search(text):
        text = pattern.sub(lambda match: match.group()[0] + " " + match.group()[1:], text)
    return text


def looks_english(text: str) -> bool:
    """Whether the letters of `text` are mostly Latin: a cheap test of script, not of language.

    The released models were trained on English prompts. French passes, Chinese or Russian does not;
    a text without letters passes.
    """
    letters = [c for c in text if c.isalpha()]
    latin = sum(c.isascii() or "LATIN" in unicodedata.name(c, "") for c in letters)
    return latin >= 0.8 * len(letters)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)
