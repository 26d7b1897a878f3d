"""The released models' text encoder: Qwen3 context and CLIP vector. Knows which parts make it up.

`chat_tokens.py` and `context_model.py` make the context, `vector_model.py` the vector. Weights are
read from local folders only. Importing this module loads no transformers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from hymotion_ray.config import TextConfig
from hymotion_ray.config.text import TextPlacement
from hymotion_ray.text.chat_tokens import ChatTokens
from hymotion_ray.text.condition import TextCondition, TextRow, empty_condition, stack_rows
from hymotion_ray.text.encoder import clean_text
from hymotion_ray.text.fingerprint import hash_files
from hymotion_ray.text.local_model import (
    check_folder,
    check_tokenizer_files,
    check_weight_files,
    read_model_config,
    require_package,
)
from hymotion_ray.text.template import PromptTemplate


@dataclass(frozen=True, kw_only=True)
class QwenClipFolders:
    """The two model folders, checked without reading a weight."""

    llm: Path
    """Qwen3."""
    clip: Path
    """CLIP, or its text half alone."""
    context_dim: int
    """Width C, from the language model's config."""
    vector_dim: int
    """Width V, from CLIP's config."""

    @classmethod
    def check(cls, llm_path: Path | str | None, clip_path: Path | str | None) -> QwenClipFolders:
        """Check that both folders hold what they should; `TextEncoderError` says what is wrong."""
        llm = check_llm_folder(llm_path)
        clip = check_folder(clip_path, "CLIP-L", "clip_path", "openai/clip-vit-large-patch14")
        llm_config = read_model_config(llm, "Qwen3", ("qwen3",))
        clip_config = read_model_config(clip, "CLIP-L", ("clip", "clip_text_model"))
        for folder, what in ((llm, "Qwen3"), (clip, "CLIP")):
            check_tokenizer_files(folder, what)
            check_weight_files(folder, what)
        return cls(
            llm=llm,
            clip=clip,
            context_dim=llm_config.get("hidden_size", 4096),
            vector_dim=clip_config.get("text_config", clip_config).get("hidden_size", 512),
        )

    def fingerprint(self, template: PromptTemplate, config: TextConfig, number_format: str) -> str:
        """Hash of files, template, limits and precision: what decides features up to rounding."""
        files = [
            [
                folder / "config.json",
                *check_tokenizer_files(folder, what),
                *check_weight_files(folder, what),
            ]
            for folder, what in ((self.llm, "Qwen3"), (self.clip, "CLIP"))
        ]
        settings = {
            "kind": "qwen_clip",
            "template": [template.system, template.user],
            "max": [config.max_context_tokens, config.max_vector_tokens],
            # Earlier releases' int8 was another quantisation.
            "precision": "int8 an output" if number_format == "int8" else number_format,
        }
        parts = [hash_files(paths, settings) for paths in files]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


class QwenClipEncoder:
    """Context: Qwen3's last hidden states from the prompt on. Vector: CLIP's pooled output."""

    def __init__(
        self,
        folders: QwenClipFolders,
        template: PromptTemplate,
        *,
        config: TextConfig,
        placement: TextPlacement,
    ) -> None:
        """Load tokenizers and weights; raises `TextEncoderError` or `MissingDependencyError`."""
        require_package("transformers", "hymotion-ray[text]", "the Qwen3 and CLIP text encoder")
        from hymotion_ray.text.context_model import ContextModel
        from hymotion_ray.text.pretrained import load_clip, load_qwen3
        from hymotion_ray.text.vector_model import VectorModel

        self.folders, self.template = folders, template
        self.config, self.placement = config, placement
        self._tokens = ChatTokens(folders.llm, template, max_tokens=config.max_context_tokens)
        self._context = ContextModel(
            load_qwen3(folders.llm, placement),
            self._tokens.prefix_ids,
            rows=placement.batch_rows,
            max_tokens=config.max_context_tokens,
        )
        self._vector = VectorModel(
            folders.clip,
            load_clip(folders.clip, placement.device),
            rows=placement.batch_rows,
            max_tokens=config.max_vector_tokens,
        )

    @property
    def context_dim(self) -> int:
        """Width C of the context features."""
        return self._context.width

    @property
    def vector_dim(self) -> int:
        """Width V of the vector feature."""
        return self._vector.width

    @property
    def crop_start(self) -> int:
        """Position of the prompt's first token in the whole chat."""
        return self._tokens.crop_start

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that decides the features up to rounding; reads all weights once."""
        return self.folders.fingerprint(self.template, self.config, self.placement.number_format)

    @cached_property
    def compute_class(self) -> str:
        """Device model, number format and rows: what else decides the last bits."""
        device = self._context.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return f"{name} {self.placement.number_format} {self.placement.batch_rows} rows"

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Context tokens of each text, the template's tail included."""
        return self._tokens.count_tokens(texts)

    def encode(self, texts: Sequence[str]) -> TextCondition:
        """The condition of `texts`: context (P, N, C) in the model's precision, vector float32.

        On the device the encoder runs on; pads are zeros. Each distinct text is encoded once.
        Raises `TextEncoderError` for features that are not finite.
        """
        if not texts:
            return empty_condition(self.context_dim, self.vector_dim, device=self._context.device)
        clean = [clean_text(text) for text in texts]
        distinct = list(dict.fromkeys(clean))
        rows = dict(zip(distinct, self._rows(distinct), strict=True))
        return stack_rows([rows[text] for text in clean], device=self._context.device)

    def _rows(self, texts: list[str]) -> list[TextRow]:
        context_ids = self._tokens.token_ids(texts)
        vector_ids = self._vector.token_ids(texts)
        limit = self.config.max_context_tokens
        contexts = self._context.features([ids[:limit] for ids in context_ids])
        vectors = self._vector.features(vector_ids)
        return [
            TextRow(
                context=context,
                vector=vector,
                context_truncated=len(c_ids) > limit,
                vector_truncated=len(v_ids) > self._vector.max_tokens,
            )
            for context, vector, c_ids, v_ids in zip(
                contexts, vectors, context_ids, vector_ids, strict=True
            )
        ]


def check_llm_folder(llm_path: Path | str | None) -> Path:
    """The Qwen3 folder as a `Path`; `TextEncoderError` when it is not given or not there."""
    return check_folder(llm_path, "Qwen3-8B", "llm_path", "Qwen/Qwen3-8B")
