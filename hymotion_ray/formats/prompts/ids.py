"""Settles ids: no two rows may write one file name, on any file system.

Knows the names of outputs (`names.py`) and the order of rows; nothing of how rows were read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

from hymotion_ray.config.fields import require
from hymotion_ray.formats.names import fold, safe_group, safe_stem
from hymotion_ray.formats.prompts.rows import EXCERPT_CHARS, PromptRow, Reject

DuplicatePolicy = Literal["error", "suffix", "skip"]


class Seen(Protocol):
    """Names taken so far and where: a dict, or a store on disk where there are millions."""

    def get(self, key: str, /) -> str | None:
        """The value of a key, or None."""

    def __setitem__(self, key: str, value: str, /) -> None:
        """Keep a value under a key."""


def settle_ids(
    rows: Iterable[PromptRow | Reject], seen: Seen, policy: DuplicatePolicy = "error"
) -> Iterator[PromptRow | Reject]:
    """Pass rows on so that each one's output name is its own; rejects pass unchanged.

    Names are compared per group as the strictest file system does, without case and Unicode form.
    The first row of a name keeps it. Later rows with a derived id get `-2`, `-3` and so on; with an
    explicit id `policy` decides: `error` (a `duplicate_id` reject that names the first place),
    `suffix` (as derived ones), `skip` (a `duplicate_skipped` reject, meant to be counted, not to
    fail a run). Order alone decides, so that the same inputs give the same ids again.
    """
    require(policy in ("error", "suffix", "skip"), "policy", policy, "error, suffix or skip")
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        key = _key(row.group, row.prompt_id)
        first = seen.get(key)
        if first is None:
            seen[key] = f"{row.file}:{row.line}"
            yield row
        elif row.explicit_id and policy != "suffix":
            yield _duplicate(row, first, policy)
        else:
            yield _with_suffix(row, key, seen)


def _key(group: str, prompt_id: str) -> str:
    return f"{fold(safe_group(group))}/{fold(safe_stem(prompt_id, 0))}"


def _with_suffix(row: PromptRow, key: str, seen: Seen) -> PromptRow:
    # The next number is kept beside the names, so that a million equal ids cost a look-up each.
    counter = f"{key}#next"
    number = int(seen.get(counter) or 2)
    while seen.get(_key(row.group, f"{row.prompt_id}-{number}")) is not None:
        number += 1
    seen[counter] = str(number + 1)
    prompt_id = f"{row.prompt_id}-{number}"
    seen[_key(row.group, prompt_id)] = f"{row.file}:{row.line}"
    return dataclasses.replace(row, prompt_id=prompt_id, warnings=(*row.warnings, "id_suffixed"))


def _duplicate(row: PromptRow, first: str, policy: DuplicatePolicy) -> Reject:
    code = "duplicate_skipped" if policy == "skip" else "duplicate_id"
    where = f" in group {row.group[:40]!r}" if row.group else ""
    message = (
        f"id {row.prompt_id[:EXCERPT_CHARS]!r}{where} would write the same file name as the row at "
        f"{first}; give each row its own id"
    )
    return Reject(row.file, row.line, code, message, row.prompt_id, row.text[:EXCERPT_CHARS])
