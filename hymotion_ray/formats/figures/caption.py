"""Captions for pictures: a prompt wrapped to two lines and the facts of its clip below it.

Knows Pillow's text. Does not know figures.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from hymotion_ray.formats.figures.drawing import pillow
from hymotion_ray.motion.motion import Motion

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont, ImageFont

PAPER = (255, 255, 255)
_INK = (28, 34, 46)
_SOFT = (112, 122, 142)
_MOST_CHARS = 1000  # far more than two lines of the widest picture hold
# Tried in turn for texts that Pillow's own Latin font cannot show.
_WIDE_FONTS = ("NotoSansCJK-Regular.ttc", "wqy-microhei.ttc", "Arial Unicode.ttf", "DejaVuSans.ttf")


def facts(motion: Motion) -> str:
    """Length, seed and model of a clip as far as they are known, on one line."""
    parts = [f"{motion.duration:.1f} s"]
    parts += [f"{key} {motion.meta[key]}" for key in ("seed", "model") if key in motion.meta]
    return "   ".join(parts)


def caption(motion: Motion, width: int, text_size: int) -> Image:
    """An RGB picture `width` wide: the prompt on at most two lines, then the facts."""
    image_module, draw_module, _ = pillow()
    margin, line = text_size, round(1.4 * text_size)
    prompt = str(motion.meta.get("prompt", "")) or "no prompt"
    font = _font(prompt, text_size)
    lines = wrap(prompt, font, width - 2 * margin, num_lines=2)
    height = 2 * margin + (len(lines) + 1) * line
    image = image_module.new("RGB", (width, height), PAPER)
    draw = draw_module.Draw(image)
    for k, text in enumerate(lines):
        draw.text((margin, margin + k * line), text, font=font, fill=_INK)
    small = _font("", round(0.85 * text_size))
    draw.text((margin, margin + len(lines) * line + 2), facts(motion), font=small, fill=_SOFT)
    return image


def wrap(text: str, font: FreeTypeFont | ImageFont, width: int, num_lines: int) -> list[str]:
    """`text` on at most `num_lines` lines of `width` pixels; the rest becomes an ellipsis."""
    words = " ".join(text.split())[:_MOST_CHARS].split(" ")
    lines: list[str] = []
    rest = words
    while rest and len(lines) < num_lines:
        count = _fitting(rest, font, width)
        if count == 0:  # one word wider than the line: cut it
            head = max(1, _fitting_letters(rest[0], font, width))
            lines.append(rest[0][:head])
            rest = [rest[0][head:], *rest[1:]]
        else:
            lines.append(" ".join(rest[:count]))
            rest = rest[count:]
    if rest and lines:
        room = width - font.getlength("…")
        lines[-1] = lines[-1][: _fitting_letters(lines[-1], font, room)].rstrip() + "…"
    return lines


def _fitting(words: list[str], font: FreeTypeFont | ImageFont, width: int) -> int:
    count = 0
    while count < len(words) and font.getlength(" ".join(words[: count + 1])) <= width:
        count += 1
    return count


def _fitting_letters(text: str, font: FreeTypeFont | ImageFont, width: float) -> int:
    lengths = range(1, len(text) + 1)
    return bisect_right(lengths, width, key=lambda count: font.getlength(text[:count]))


def _font(text: str, size: int) -> FreeTypeFont | ImageFont:
    from PIL import ImageFont

    if any(ord(letter) > 0x24F for letter in text):
        for name in _WIDE_FONTS:
            try:
                return ImageFont.truetype(name, size)
            except OSError:
                continue
    return ImageFont.load_default(size)
