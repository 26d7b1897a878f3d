"""The chat messages around a prompt: the released system message, or ours. Knows no tokenizer.

The released message is not ours to copy; the importer reads it from the user's own checkout.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from hymotion_ray.config.text import RELEASED_TEMPLATE_SHA256
from hymotion_ray.errors import TextEncoderError

OUR_SYSTEM_MESSAGE = (
    "The user describes how a human body moves. Attend to what each body part does, and to the "
    "direction, the speed, the order and the manner of the movement."
)
ALLOWED = (
    "the system message as text, or JSON: a message with role and content, a list of such "
    "messages, or an object that holds the list under 'template' or 'messages'"
)


@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    """A system message, and how the prompt stands in the user message."""

    system: str
    """The system message."""
    user: str = "{}"
    """The user message; `{}` is the prompt's place."""

    @property
    def source(self) -> Literal["released", "ours", "given"]:
        """Whose system message it is; the releases were trained with `released`."""
        if hashlib.sha256(self.system.encode()).hexdigest() == RELEASED_TEMPLATE_SHA256:
            return "released"
        return "ours" if self.system == OUR_SYSTEM_MESSAGE else "given"

    def messages(self, text: str) -> list[dict[str, str]]:
        """The chat with `text` as the prompt."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.user.replace("{}", text)},
        ]


def read_template(stored: str | None) -> PromptTemplate:
    """The template a model folder stores; ours when it stores none.

    Raises `TextEncoderError` when `stored` is none of the allowed forms.
    """
    if stored is None:
        return PromptTemplate(system=OUR_SYSTEM_MESSAGE)
    try:
        literal: Any = json.loads(stored)
    except json.JSONDecodeError:
        literal = stored
    return _from_literal(literal)


def _from_literal(literal: Any) -> PromptTemplate:
    if isinstance(literal, dict) and "role" not in literal:
        literal = literal.get("template", literal.get("messages"))
    if isinstance(literal, str) and literal.strip():
        return PromptTemplate(system=literal)
    messages = [literal] if isinstance(literal, dict) else literal
    if not isinstance(messages, list) or not all(_is_message(m) for m in messages):
        raise TextEncoderError(
            f"the prompt template is {json.dumps(literal)[:80]}; allowed: {ALLOWED}"
        )
    texts = {m["role"]: m["content"] for m in messages}
    user = texts.get("user") or "{}"
    if len(texts) != len(messages) or texts.keys() not in ({"system"}, {"system", "user"}):
        raise TextEncoderError(
            f"the prompt template has the roles {[m['role'] for m in messages]}; allowed: one "
            "system message and at most one user message"
        )
    if user.count("{}") != 1:
        raise TextEncoderError(
            f"the prompt template's user message is {user[:80]!r}; allowed: a text with one "
            "'{}', the prompt's place"
        )
    return PromptTemplate(system=texts["system"], user=user)


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(
        isinstance(message.get(key), str) for key in ("role", "content")
    )
