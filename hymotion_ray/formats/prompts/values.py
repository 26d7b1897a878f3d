"""Reads the single values of a prompt row: text, names, lengths, seeds, guidance, steps.

Values come from JSON, Parquet (Python objects) or CSV (strings). None and blank strings mean that
nothing was given. Every function raises `PromptError` with a stable code for what is not allowed.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from hymotion_ray.config.sampling import SamplingConfig
from hymotion_ray.errors import ConfigError, PromptError
from hymotion_ray.formats.prompts.language import has_words

FPS = 30
LENGTH_LIMIT = 5000
"""Frames from which on a length is taken for a mistake, not for a wish to be clamped."""
MAX_SEED = 2**63 - 1
"""Largest seed: what `torch.Generator` takes and a signed 64-bit column holds; the least is 0."""
MAX_TEXT_CHARS = 1024 * 1024
MAX_NAME_CHARS = 4096
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE
)
_SEPARATORS = re.compile(r"[\s,;]+")
_LENGTHS = (
    f"more than 0 and below {LENGTH_LIMIT} frames ({LENGTH_LIMIT // FPS} s) at {FPS} a second"
)


def is_absent(value: Any) -> bool:
    """Whether a value means that nothing was given."""
    return value is None or (isinstance(value, str) and not value.strip())


def is_number(text: str) -> bool:
    """Whether `text` is written as a number, with sign, fraction or exponent, or is nan or inf."""
    return _NUMBER.fullmatch(text) is not None


def as_text(value: Any) -> str:
    """The sentence of a row without the blanks around it."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise PromptError(f"text is not UTF-8 (byte {error.start})", "bad_encoding") from error
    if value is None:
        raise PromptError("text is missing; every prompt needs a sentence", "empty_prompt")
    if not isinstance(value, str):
        raise PromptError(f"text is {_shown(value)}; allowed: a string", "bad_text")
    if len(value) > MAX_TEXT_CHARS:
        raise PromptError(
            f"text has {len(value)} characters; allowed: {MAX_TEXT_CHARS}", "line_too_long"
        )
    text = value.strip().removeprefix("\ufeff").strip()
    _check_characters(text, "text")
    if not has_words(text):
        raise PromptError(f"text is {text[:20]!r}; every prompt needs a sentence", "empty_prompt")
    return text


def as_name(value: Any, field: str, code: str) -> str:
    """An id or group as an opaque string, `""` when absent; numbers become strings."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # tables keep whole numbers as floats where some are missing
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        value = str(value)
    elif isinstance(value, float) and math.isfinite(value):
        value = repr(value)
    if not isinstance(value, str):
        raise PromptError(f"{field} is {_shown(value)}; allowed: a string or a number", code)
    if len(value) > MAX_NAME_CHARS:
        raise PromptError(f"{field} has {len(value)} characters; allowed: {MAX_NAME_CHARS}", code)
    _check_characters(value, field, code)
    return value if value.strip() else ""


def settle_length(num_frames: Any, duration: Any, default: int) -> int:
    """Frames from a length in frames, or in seconds as `round(duration * 30)`, or the default.

    Both may be given when they agree.
    """
    frames = None if is_absent(num_frames) else _frames(num_frames)
    if is_absent(duration):
        return default if frames is None else frames
    seconds = _number(duration, "duration", "bad_length")
    if not 0 < seconds < LENGTH_LIMIT / FPS:  # false for NaN as well
        raise PromptError(f"duration is {_shown(duration)}; allowed: {_LENGTHS}", "bad_length")
    in_frames = round(seconds * FPS)
    if not 0 < in_frames < LENGTH_LIMIT:
        raise PromptError(
            f"duration is {_shown(duration)}, {in_frames} frames; allowed: {_LENGTHS}", "bad_length"
        )
    if frames is not None and frames != in_frames:
        raise PromptError(
            f"num_frames is {frames} but duration {seconds} s is {in_frames} frames at {FPS} a "
            "second; give one of the two",
            "conflicting_length",
        )
    return in_frames


def _frames(value: Any) -> int:
    number = _number(value, "num_frames", "bad_length")
    if not 0 < number < LENGTH_LIMIT:
        raise PromptError(f"num_frames is {_shown(value)}; allowed: {_LENGTHS}", "bad_length")
    if number != int(number):
        raise PromptError(
            f"num_frames is {_shown(value)}; allowed: a whole number (seconds go in duration)",
            "bad_length",
        )
    return int(number)


def as_seeds(value: Any) -> tuple[int, ...] | None:
    """Seeds from one number, a list, or a string such as `1,2` or `1 2` or `[1, 2]`."""
    if is_absent(value):
        return None
    if isinstance(value, str):
        value = _SEPARATORS.split(value.strip().removeprefix("[").removesuffix("]").strip(" ,;"))
    if not isinstance(value, (list, tuple)):
        value = [value]
    if not value:
        raise PromptError("seeds is an empty list; leave it out, or name a seed", "bad_seeds")
    return tuple(_seed(item) for item in value)


def _seed(value: Any) -> int:
    # Through int first: a float cannot hold every seed.
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,20}", value):
        value = int(value)
    number = _number(value, "seeds", "bad_seeds")
    if not 0 <= number <= MAX_SEED or number != int(number):
        raise PromptError(
            f"seeds holds {_shown(value)}; allowed: whole numbers from 0 to {MAX_SEED}", "bad_seeds"
        )
    return int(number)


def as_guidance_scale(value: Any) -> float | None:
    """Guidance scale within the limits of `SamplingConfig`, or None."""
    if is_absent(value):
        return None
    code = "bad_guidance_scale"
    try:
        number = float(_number(value, "guidance_scale", code))
        return SamplingConfig(guidance_scale=number).guidance_scale
    except (ConfigError, OverflowError) as error:
        raise PromptError(str(error), code) from error


def as_num_steps(value: Any) -> int | None:
    """Solver steps within the limits of `SamplingConfig`, or None."""
    if is_absent(value):
        return None
    code = "bad_num_steps"
    number = _number(value, "num_steps", code)
    if not math.isfinite(number) or number != int(number):
        raise PromptError(f"num_steps is {_shown(value)}; allowed: a whole number", code)
    try:
        return SamplingConfig(num_steps=int(number)).num_steps
    except ConfigError as error:
        raise PromptError(str(error), code) from error


def printable(text: str) -> str:
    """`text` without what UTF-8 or a terminal's line cannot carry."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _number(value: Any, field: str, code: str) -> int | float:
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, str):
        word = value.strip()
        if len(word) <= 64 and is_number(word):
            return int(word) if word.isdigit() else float(word)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PromptError(f"{field} is {_shown(value)}; allowed: a number", code)
    return value


def _shown(value: Any) -> str:
    # An int of thousands of digits cannot be turned into text.
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of over 60 digits"
    return f"{value!r:.60} ({type(value).__name__})"


def _check_characters(text: str, field: str, code: str = "bad_text") -> None:
    if "\0" in text:
        raise PromptError(
            f"{field} holds a NUL character; is the file UTF-16? Save it as UTF-8", code
        )
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{field} holds half of a surrogate pair at character {error.start}; write it as UTF-8",
            "bad_encoding",
        ) from error
