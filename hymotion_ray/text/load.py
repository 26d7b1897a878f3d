"""Which encoder a model asks for, loaded, or only its token counter. Knows no prompt.

A planner on a machine without GPU or weights uses `load_token_counter`; `encoder_fingerprint` tells
two encoders apart without loading either.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from hymotion_ray.config import TextConfig
from hymotion_ray.config.text import TextPlacement
from hymotion_ray.errors import TextEncoderError
from hymotion_ray.text.encoder import TextEncoder, TokenCounter
from hymotion_ray.text.static import StaticEncoder, StaticTokenizer, static_fingerprint
from hymotion_ray.text.template import read_template

logger = logging.getLogger(__name__)

STATIC_FOLDER = "text"


def load_encoder(
    config: TextConfig,
    folder: Path | str,
    *,
    placement: TextPlacement | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    llm_path: Path | str | None = None,
    clip_path: Path | str | None = None,
    template: str | None = None,
    expected_context_dim: int | None = None,
    expected_vector_dim: int | None = None,
) -> TextEncoder:
    """The text encoder of the model in `folder`.

    `placement` says where and how the language model runs; `device` and `dtype` are short for a
    placement with these alone. `llm_path` and `clip_path` override the config's. `template` is
    the model folder's prompt template as stored (None: ours). The expected widths are the
    network's ctxt_input_dim and vtxt_input_dim, checked before any weight is read.

    Raises `TextEncoderError` or `MissingDependencyError` with what is missing and what to do.
    """
    placement = placement or _short_placement(device, dtype)
    encoder: TextEncoder
    if config.kind == "static":
        encoder = StaticEncoder(
            Path(folder) / STATIC_FOLDER,
            device=placement.device,
            dtype=dtype or torch.float32,
            max_context_tokens=config.max_context_tokens,
        )
        _check_widths(
            encoder.context_dim, encoder.vector_dim, expected_context_dim, expected_vector_dim
        )
        return encoder
    from hymotion_ray.text.qwen_clip import QwenClipEncoder, QwenClipFolders

    folders = QwenClipFolders.check(llm_path or config.llm_path, clip_path or config.clip_path)
    _check_widths(
        folders.context_dim, folders.vector_dim, expected_context_dim, expected_vector_dim
    )
    chat = read_template(template)
    if chat.source == "ours":
        logger.warning(
            "the model folder holds no prompt template, so a neutral system message of our own "
            "stands in: text features are not those the released models were trained on. Import "
            "the release again with --checkout to bring the template along"
        )
    return QwenClipEncoder(folders, chat, config=config, placement=placement)


def load_token_counter(
    config: TextConfig,
    folder: Path | str,
    *,
    llm_path: Path | str | None = None,
    template: str | None = None,
) -> TokenCounter:
    """Counts context tokens as the encoder would, from tokenizer files alone."""
    if config.kind == "static":
        return StaticTokenizer(
            Path(folder) / STATIC_FOLDER, max_context_tokens=config.max_context_tokens
        )
    from hymotion_ray.text.chat_tokens import ChatTokens
    from hymotion_ray.text.qwen_clip import check_llm_folder

    return ChatTokens(
        check_llm_folder(llm_path or config.llm_path),
        read_template(template),
        max_tokens=config.max_context_tokens,
    )


def encoder_fingerprint(
    config: TextConfig,
    folder: Path | str,
    *,
    placement: TextPlacement | None = None,
    llm_path: Path | str | None = None,
    clip_path: Path | str | None = None,
    template: str | None = None,
) -> str:
    """The `fingerprint` that `load_encoder` would give, from the files alone: loads no model."""
    placement = placement or TextPlacement()
    if config.kind == "static":
        return static_fingerprint(Path(folder) / STATIC_FOLDER, config.max_context_tokens)
    from hymotion_ray.text.qwen_clip import QwenClipFolders

    folders = QwenClipFolders.check(llm_path or config.llm_path, clip_path or config.clip_path)
    return folders.fingerprint(read_template(template), config, placement.number_format)


def _short_placement(device: torch.device | str | None, dtype: torch.dtype | None) -> TextPlacement:
    names = {
        None: "auto",
        torch.float32: "float32",
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
    }
    if dtype not in names:
        raise TextEncoderError(
            f"the text encoder's dtype is {dtype}; allowed: float32, bfloat16 or float16"
        )
    return TextPlacement(device=str(device or "cpu"), precision=names[dtype])  # type: ignore[arg-type]


def _check_widths(
    context: int, vector: int, expected_context: int | None, expected_vector: int | None
) -> None:
    for what, got, expected, usual in (
        ("context", context, expected_context, "Qwen3-8B gives 4096"),
        ("vector", vector, expected_vector, "CLIP-L gives 768"),
    ):
        if expected is not None and got != expected:
            raise TextEncoderError(
                f"the text encoder's {what} features are {got} wide, but the network takes "
                f"{expected}; use the encoder that the model was trained with ({usual})"
            )
