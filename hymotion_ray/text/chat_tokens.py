"""Prompts as tokens of the language model's chat template. Knows tokenizers; needs no weights.

The template splits into a fixed prefix (system message and the start of the user message), the
prompt, and a fixed tail. Only prompt and tail are tokenised per text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hymotion_ray.errors import TextEncoderError
from hymotion_ray.text.encoder import clean_text, neutralise
from hymotion_ray.text.local_model import read_tokenizer
from hymotion_ray.text.template import PromptTemplate

MARKER = "PromptGoesHere"
PROBES = (MARKER, "a person walks", "1 step", "(slowly) he sits", '"jump"', ".", "走路", "é")


class ChatTokens:
    """Tokens from the start of the prompt on, at most `max_tokens` of them kept."""

    def __init__(self, folder: Path, template: PromptTemplate, *, max_tokens: int) -> None:
        """Read the tokenizer of `folder`.

        Raises `TextEncoderError` when it is missing or damaged, has no chat template, or does not
        keep the template's prefix apart from the prompt.
        """
        self._tokenizer = read_tokenizer(folder, "Qwen3")
        self.max_tokens = max_tokens
        self.template = template
        self._control = control_tokens(self._tokenizer)
        prefix, self._tail = self._split_template(folder)
        self.prefix_ids: list[int] = self._ids([prefix])[0]
        for probe in PROBES:
            whole = self._ids([prefix + probe + self._tail])[0]
            if whole != self.prefix_ids + self._ids([probe + self._tail])[0]:
                raise TextEncoderError(
                    f"the tokenizer in {folder} joins the template's prefix with the prompt "
                    f"{probe!r}, so that the prefix cannot be shared; use Qwen3's own tokenizer"
                )

    @property
    def crop_start(self) -> int:
        """Position of the prompt's first token in the whole chat."""
        return len(self.prefix_ids)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Context tokens of each text, the template's tail included, at most `max_tokens`."""
        return [min(len(ids), self.max_tokens) for ids in self.token_ids(texts)]

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of prompt and tail for each text, uncut.

        Control tokens in a text are neutralised first: its words stay, but end no message.
        """
        return self._ids([self.neutral(text) + self._tail for text in texts])

    def neutral(self, text: str) -> str:
        """The prompt as the model sees it."""
        return neutralise(clean_text(text), self._control)

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []

    def _split_template(self, folder: Path) -> tuple[str, str]:
        """The rendered chat before and after the prompt, found with a marker in its place."""
        try:
            rendered: Any = self._tokenizer.apply_chat_template(
                self.template.messages(MARKER),
                tokenize=False,
                add_generation_prompt=False,
                enable_thinking=False,
            )
        except Exception as error:  # jinja and the library raise many kinds
            raise TextEncoderError(
                f"the chat template of the tokenizer in {folder} cannot be used: {error}"
            ) from error
        prefix, found, tail = rendered.partition(MARKER)
        if not found or MARKER in tail or not prefix:
            raise TextEncoderError(
                f"the chat template of the tokenizer in {folder} does not show a user message once "
                "after a system message; use Qwen3's own tokenizer files"
            )
        return prefix, tail


def control_tokens(tokenizer: Any) -> list[str]:
    """Every text that a tokenizer of transformers maps to a token of its own, as ``<|im_end|>``."""
    return sorted({*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens})
