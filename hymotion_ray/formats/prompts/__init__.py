"""Prompt files of every form, as one stream of rows and rejects.

Reads .txt, .json, .jsonl, .csv and .parquet (suffix in any case; all but Parquet also .gz and
.zst), folders and globs of them, from the local disk or s3://, gs:// and az://. Memory is bounded
by one chunk, line, entry or batch. Row by row: the forms are in `prompt_lines`, `prompt_json` and
`prompt_tables`, the rules of values in `prompt_values`, of ids in `prompt_ids`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hymotion_ray.errors import PromptError
from hymotion_ray.formats.prompts.columns import ColumnReader
from hymotion_ray.formats.prompts.files import Paths, PromptFile, list_prompt_files
from hymotion_ray.formats.prompts.ids import DuplicatePolicy, Seen, settle_ids
from hymotion_ray.formats.prompts.json_file import read_json
from hymotion_ray.formats.prompts.lines import read_jsonl, read_txt
from hymotion_ray.formats.prompts.rows import PromptRow, PromptRules, Reject, RowBuilder
from hymotion_ray.formats.prompts.tables import read_csv, read_parquet

__all__ = [
    "PromptRow",
    "PromptTable",
    "Reject",
    "Seen",
    "iter_prompts",
    "read_prompts",
    "settle_ids",
]

_log = logging.getLogger(__name__)
_READERS: dict[
    str, Callable[[PromptFile, RowBuilder, ColumnReader], Iterator[PromptRow | Reject]]
] = {
    ".txt": read_txt,
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


@dataclass(frozen=True)
class PromptTable:
    """All rows of some prompt files in memory, in order, with what could not be used."""

    rows: tuple[PromptRow, ...]
    rejects: tuple[Reject, ...]
    warnings: tuple[str, ...] = ()
    """Sentences on files and columns, each once."""

    @property
    def summary(self) -> dict[str, Any]:
        """Counts: rows, rejects by code, row warnings by word, files and groups with rows."""
        return {
            "num_rows": len(self.rows),
            "num_rejects": len(self.rejects),
            "rejects": dict(Counter(reject.code for reject in self.rejects)),
            "warnings": dict(Counter(word for row in self.rows for word in row.warnings)),
            "num_files": len({row.file for row in self.rows}),
            "num_groups": len({row.group for row in self.rows}),
        }


def iter_prompts(
    paths: Paths,
    *,
    default_frames: int = 150,
    strict: bool = False,
    min_frames: int = 20,
    max_frames: int = 360,
    warn: Callable[[str], None] = _log.warning,
) -> Iterator[PromptRow | Reject]:
    """Every row of the files behind `paths`, in order, as `PromptRow` or `Reject`.

    One bad row never stops the others, nor one bad file: a file that cannot be read is one reject
    with line 0. Ids may repeat; `settle_ids` sees to that. `warn` gets a sentence for each unknown
    column, for what a folder holds besides, and for an input without prompts. Lengths are in frames
    at 30 a second.

    Raises `InputError` at once, before any row, for a path that does not exist, cannot be reached
    or is no prompt file by its name, and `ConfigError` for limits that cannot be.
    """
    rules = PromptRules(
        default_frames=default_frames, min_frames=min_frames, max_frames=max_frames, strict=strict
    )
    return _iter_files(list_prompt_files(paths, warn), rules, warn)


def _iter_files(
    files: list[PromptFile], rules: PromptRules, warn: Callable[[str], None]
) -> Iterator[PromptRow | Reject]:
    for file in files:
        rows = RowBuilder(file.name, file.stem, rules)
        num_found = 0
        try:
            for row in _READERS[file.kind](file, rows, ColumnReader(file.name, warn)):
                num_found += 1
                yield row
        except PromptError as error:
            yield rows.reject(0, error)
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            message = f"the file cannot be read to its end ({error}); {num_found} rows were read"
            yield rows.reject(0, PromptError(message, "unreadable_file"))
        else:
            if not num_found:
                warn(f"{file.name}: holds no prompts")


def read_prompts(
    paths: Paths,
    *,
    default_frames: int = 150,
    strict: bool = False,
    min_frames: int = 20,
    max_frames: int = 360,
    duplicates: DuplicatePolicy = "error",
) -> PromptTable:
    """All rows of the files behind `paths`, with ids settled; for inputs that fit in memory.

    `duplicates` says what happens to a repeated explicit id (see `settle_ids`). Raises as
    `iter_prompts` does.
    """
    warnings: dict[str, None] = {}
    rows = iter_prompts(
        paths,
        default_frames=default_frames,
        strict=strict,
        min_frames=min_frames,
        max_frames=max_frames,
        warn=lambda text: warnings.setdefault(text),
    )
    return _table(settle_ids(rows, {}, duplicates), warnings)


def _table(rows: Iterable[PromptRow | Reject], warnings: Mapping[str, None]) -> PromptTable:
    good: list[PromptRow] = []
    bad: list[Reject] = []
    for row in rows:
        if isinstance(row, Reject):
            bad.append(row)
        else:
            good.append(row)
    return PromptTable(tuple(good), tuple(bad), tuple(warnings))
