"""One prompt row: what it holds, which values are allowed, and what is wrong with one that is not.

Knows the rules of every field. Knows nothing of files, of how a line was read, or of other rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hymotion_ray.config.fields import require
from hymotion_ray.errors import PromptError
from hymotion_ray.formats.prompts.language import looks_english
from hymotion_ray.formats.prompts.values import (
    LENGTH_LIMIT,
    as_guidance_scale,
    as_name,
    as_num_steps,
    as_seeds,
    as_text,
    is_absent,
    printable,
    settle_length,
)

EXCERPT_CHARS = 120


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt as it will be rendered."""

    prompt_id: str
    """As given, or `<file stem>-<line>`; opaque."""
    text: str
    """The sentence, without the fields and the blanks around it."""
    num_frames: int
    """Length at 30 frames a second, within the limits."""
    seeds: tuple[int, ...] | None
    """Seeds of this row; None: those of the run."""
    guidance_scale: float | None
    """None: that of the run."""
    num_steps: int | None
    """None: that of the run."""
    group: str
    """Group key as given, `""` for none; `names.safe_group` makes a folder of it."""
    file: str
    """Where the row stands."""
    line: int
    """Line of a text file, or entry of a .json or .parquet file, counted from 1."""
    explicit_id: bool
    """Whether the file gave the id."""
    requested_frames: int
    """Length that was asked for; another than `num_frames` when that was clamped."""
    warnings: tuple[str, ...]
    """Short words: clamped, not_english, seeds_repeated, id_suffixed."""
    explicit_length: bool = True
    """Whether the file gave the length."""
    original_text: str | None = None
    """The file's sentence where a rewriter has put another into `text`."""


@dataclass(frozen=True, slots=True)
class Reject:
    """One row, or with line 0 a whole file, that cannot be used."""

    file: str
    line: int
    code: str
    """A short stable word, such as `bad_length`."""
    message: str
    prompt_id: str | None
    text: str
    """The first `EXCERPT_CHARS` characters of the row, as far as it could be read."""

    def to_mapping(self) -> dict[str, str | int | None]:
        """The fields as JSON takes them."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class PromptRules:
    """What holds for rows that say nothing, and where lengths end."""

    default_frames: int = 150
    """Frames of a row without a length."""
    min_frames: int = 20
    """Shorter rows are made this long."""
    max_frames: int = 360
    """Longer rows, below `LENGTH_LIMIT`, are cut to this."""
    strict: bool = False
    """Reject rows that would be clamped."""

    def __post_init__(self) -> None:
        allowed = f"a whole number of frames from 1 to {self.max_frames}"
        require(1 <= self.min_frames <= self.max_frames, "min_frames", self.min_frames, allowed)
        allowed = f"a whole number of frames from 1 to {LENGTH_LIMIT - 1}"
        require(
            1 <= self.default_frames < LENGTH_LIMIT, "default_frames", self.default_frames, allowed
        )


class RowBuilder:
    """Turns the fields of one row after another into `PromptRow` or `Reject`, for one file."""

    def __init__(self, file: str, stem: str, rules: PromptRules) -> None:
        self.file = file
        self.stem = stem
        self.rules = rules

    def build(self, line: int, fields: Mapping[str, Any]) -> PromptRow | Reject:
        """The row of `fields` (named as in `prompt_columns.FIELDS`)."""
        try:
            return self._row(line, fields)
        except PromptError as error:
            return self.reject(line, error, fields)

    def reject(self, line: int, error: PromptError, fields: Mapping[str, Any] | str = "") -> Reject:
        """The reject of a row that `error` stands for, with what can be said of it."""
        prompt_id: str | None = None
        if isinstance(fields, Mapping):
            given = fields.get("prompt_id")
            if isinstance(given, (str, int)) and not isinstance(given, bool) and given != "":
                prompt_id = printable(str(given)[:EXCERPT_CHARS])
            text = fields.get("text")
            fields = text if isinstance(text, str) else ""
        excerpt = printable(fields[:EXCERPT_CHARS].strip())
        return Reject(self.file, line, error.code, str(error), prompt_id, excerpt)

    def _row(self, line: int, fields: Mapping[str, Any]) -> PromptRow:
        text = as_text(fields.get("text"))
        warnings: tuple[str, ...] = ()
        requested = settle_length(
            fields.get("num_frames"), fields.get("duration"), self.rules.default_frames
        )
        num_frames = min(max(requested, self.rules.min_frames), self.rules.max_frames)
        if num_frames != requested:
            if self.rules.strict:
                raise PromptError(
                    f"length is {requested} frames; allowed: {self.rules.min_frames} to "
                    f"{self.rules.max_frames} (without --strict it becomes {num_frames})",
                    "length_out_of_range",
                )
            warnings += ("clamped",)
        if not looks_english(text):
            warnings += ("not_english",)
        seeds = as_seeds(fields.get("seeds"))
        if seeds is not None and len(set(seeds)) != len(seeds):
            seeds = tuple(dict.fromkeys(seeds))
            warnings += ("seeds_repeated",)
        prompt_id = as_name(fields.get("prompt_id"), "prompt_id", "bad_id")
        return PromptRow(
            prompt_id=prompt_id or f"{self.stem}-{line}",
            text=text,
            num_frames=num_frames,
            seeds=seeds,
            guidance_scale=as_guidance_scale(fields.get("guidance_scale")),
            num_steps=as_num_steps(fields.get("num_steps")),
            group=as_name(fields.get("group"), "group", "bad_group"),
            file=self.file,
            line=line,
            explicit_id=prompt_id != "",
            requested_frames=requested,
            warnings=warnings,
            explicit_length=not all(is_absent(fields.get(n)) for n in ("num_frames", "duration")),
        )
