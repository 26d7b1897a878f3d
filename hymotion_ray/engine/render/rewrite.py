"""Prompts through the rewriter, when one is configured; its answers kept. Ray-free.

An endpoint may answer otherwise when asked again, and another text is another clip. So each answer
is written to the output folder before anything is rendered from it, and read from there later.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from hymotion_ray.config.render import RewriteConfig
from hymotion_ray.engine.identity import digest
from hymotion_ray.engine.worklist import Worklist
from hymotion_ray.formats.atomic import Store
from hymotion_ray.formats.prompts import PromptRow
from hymotion_ray.text.rewrite import Rewriter

FOLDER = "rewrites"


class RewriteStage:
    """Rewords batches of rows; one that cannot be served keeps its text, with a warning."""

    def __init__(self, config: RewriteConfig | None, store: Store, worklist: Worklist) -> None:
        self._config, self._store, self._answers = config, store, worklist.answers
        self._rewriter = Rewriter(config) if config is not None else None
        if config is not None:
            for name in store.list_files(FOLDER, suffix=".jsonl"):
                for line in store.read_bytes(name).decode().splitlines():
                    saved = json.loads(line)
                    self._answers[saved["key"]] = line

    def __call__(self, rows: Sequence[PromptRow]) -> list[PromptRow]:
        """Each row with the text to encode; `original_text` is the prompt where that differs."""
        if self._rewriter is None:
            return list(rows)
        keys = [self._key(row.text) for row in rows]
        asked = [row.text for row, key in zip(rows, keys, strict=True) if key not in self._answers]
        if asked:
            self._ask(list(dict.fromkeys(asked)))
        return [
            _with_answer(row, json.loads(self._answers[key]))
            for row, key in zip(rows, keys, strict=True)
        ]

    def _ask(self, texts: list[str]) -> None:
        assert self._rewriter is not None
        lines = []
        for text, answer in zip(texts, self._rewriter.rewrite(texts), strict=True):
            key = self._key(text)
            line = json.dumps(
                {"key": key, "prompt": text, **dataclasses.asdict(answer)}, ensure_ascii=False
            )
            self._answers[key] = line
            lines.append(line)
        name = f"{FOLDER}/part-{digest({'prompts': texts})}.jsonl"
        self._store.write_bytes(name, ("\n".join(lines) + "\n").encode())

    def _key(self, text: str) -> str:
        assert self._config is not None
        return digest({"text": text, "model": self._config.model, "url": self._config.endpoint})


def _with_answer(row: PromptRow, answer: dict[str, Any]) -> PromptRow:
    if answer["source"] == "original":
        warning = f"not rewritten: {answer['reason']}"
        return dataclasses.replace(row, warnings=(*row.warnings, warning))
    num_frames = row.num_frames
    if not row.explicit_length and answer["num_frames"] is not None:
        num_frames = answer["num_frames"]
    warnings = tuple(w for w in row.warnings if w != "not_english")
    return dataclasses.replace(
        row,
        text=answer["text"],
        num_frames=num_frames,
        warnings=warnings,
        original_text=row.text,
    )
