"""A rewriter's answer, read as untrusted text. Knows no network.

The endpoint is asked for ``{"duration": frames at 30 fps, "short_caption": text}``. Models wrap
that in prose or code fences, and get it wrong in every way; anything doubtful is refused.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hymotion_ray.text.encoder import clean_text, mostly_latin

MAX_CAPTION_CHARS = 600
MAX_FRAMES = 5000  # from here on a prompt row is refused as well
MAX_OBJECT_STARTS = 50


class AnswerError(Exception):
    """The answer cannot be used; the message says why in short."""


def parse_answer(body: bytes) -> tuple[str, int | None]:
    """Caption and frames (None: no length proposed) of a chat completion's body.

    Lengths outside a model's range are left for the caller to clamp, as those of prompt rows are.
    Raises `AnswerError` for anything that is not a usable answer.
    """
    answer = _find_object(_message(body))
    caption = answer.get("short_caption")
    if not isinstance(caption, str):
        raise AnswerError("short_caption is missing or is no text")
    caption = re.sub(r"\s+", " ", clean_text(caption))
    if not any(char.isalpha() for char in caption):
        raise AnswerError("short_caption has no words")
    if len(caption) > MAX_CAPTION_CHARS:
        raise AnswerError(f"short_caption is longer than {MAX_CAPTION_CHARS} characters")
    if not mostly_latin(caption):
        raise AnswerError("short_caption is not in English")
    return caption, _frames(answer.get("duration"))


def _message(body: bytes) -> str:
    """The text of the first choice's message."""
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise AnswerError("it is no chat completion") from error
    if not isinstance(content, str):
        raise AnswerError("the message is no text")
    return content


def _find_object(text: str) -> dict[str, Any]:
    """The first JSON object in `text` that has a short_caption, whatever stands around it."""
    decoder = json.JSONDecoder()
    for start in [match.start() for match in re.finditer(r"\{", text)][:MAX_OBJECT_STARTS]:
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "short_caption" in value:
            return value
    raise AnswerError("it holds no JSON object with a short_caption")


def _frames(duration: Any) -> int | None:
    if duration is None:
        return None
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise AnswerError("duration is no number")
    if not 0.5 <= duration < MAX_FRAMES:  # NaN and infinities fail this too
        raise AnswerError(f"duration is not between 1 and {MAX_FRAMES - 1} frames")
    return max(1, round(duration))
