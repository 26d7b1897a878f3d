"""A cheap guess whether a prompt is English, which is what the model was trained on.

Knows scripts and a few function words; a wrong guess costs a warning, never a prompt.
"""

from __future__ import annotations

import re
import unicodedata

_LETTER_OR_DIGIT = re.compile(r"[0-9A-Za-z]")
_MAX_FOREIGN_SHARE = 0.2  # of the letters: a name or two in another script is still English
_SAMPLE_CHARS = 500
_ENGLISH_WORDS = (
    "a an the and then with while to in of on at is are his her their its from into onto over "
    "forward backward up down left right person man woman someone walks runs jumps"
)
# German, French, Spanish, Italian, Portuguese and Dutch; none an English word as well.
_OTHER_WORDS = (
    "der das und ein eine einen mit nach dann geht dem sich auf im vom zur zum ist nicht le "
    "la les une et puis avec vers dans qui est du aux personne marche el los las uno una y "
    "luego hacia adelante mientras persona camina corre salta il gli e poi verso mentre "
    "cammina nel della uma pessoa anda para frente depois het een en naar loopt persoon"
)
_ENGLISH = frozenset(_ENGLISH_WORDS.split())
_OTHERS = frozenset(_OTHER_WORDS.split())


def has_words(text: str) -> bool:
    """Whether there is anything to act on: a letter, a digit or a symbol such as an emoji."""
    if _LETTER_OR_DIGIT.search(text):
        return True
    return any(
        unicodedata.category(char)[0] in "LN" or unicodedata.category(char) == "So" for char in text
    )


def looks_english(text: str) -> bool:
    """Whether script and function words speak for English; in doubt, yes."""
    text = text[:_SAMPLE_CHARS]
    if not text.isascii():
        letters = [char for char in text if char.isalpha()]
        foreign = sum(not _is_latin(char) for char in letters)
        if foreign > _MAX_FOREIGN_SHARE * len(letters):
            return False
    words = set(text.lower().split())
    others = words & _OTHERS
    return len(others) <= len(words & _ENGLISH) if others else True


def _is_latin(char: str) -> bool:
    return char < "\u0250" or "\u1e00" <= char <= "\u1eff"
