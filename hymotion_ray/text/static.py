"""The small encoder of the built-in model: one stored vector a word piece. Knows no language model.

A folder holds `encoder.json`, `tokenizer.json` (word pieces, lower case) and `vectors.safetensors`
(one row a piece, already multiplied by the piece's weight, so that "a" counts little and "jumps"
much). Needs torch, tokenizers and safetensors; nothing is downloaded. The idea of distilling a
sentence encoder into static vectors with PCA and Zipf weights is Model2Vec's (MinishLab, 2024); the
weight is that of SIF (Arora, Liang and Ma, 2017). `benchmarks/make_static_vectors.py` makes the
files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer

from hymotion_ray.errors import TextEncoderError
from hymotion_ray.text.condition import TextCondition, TextRow, empty_condition, stack_rows
from hymotion_ray.text.encoder import clean_text
from hymotion_ray.text.fingerprint import hash_files

STATIC_SCHEMA_VERSION = 1
FILES = ("encoder.json", "tokenizer.json", "vectors.safetensors")


class StaticTokenizer:
    """The word pieces of a static encoder: enough to count tokens, without its vectors."""

    def __init__(self, folder: Path | str, *, max_context_tokens: int = 128) -> None:
        """Read `tokenizer.json` of `folder`; `TextEncoderError` when it is missing or damaged."""
        self.max_context_tokens = max_context_tokens
        path = _existing(Path(folder), "tokenizer.json")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise TextEncoderError(f"{path} is not a tokenizer file: {error}") from error

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Context tokens of each text, 1 to `max_context_tokens`."""
        return [min(len(ids), self.max_context_tokens) for ids in self.token_ids(texts)]

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Piece numbers of each text, uncut; a text without pieces is one unknown piece."""
        encodings = self._tokenizer.encode_batch([clean_text(text) for text in texts])
        return [encoding.ids or [0] for encoding in encodings]


class StaticEncoder(StaticTokenizer):
    """Context: a vector a word piece, mixed with its neighbours. Vector: their weighted mean.

    The piece before counts more than the one after, so that "left arm" and "arm left" differ.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        max_context_tokens: int = 128,
    ) -> None:
        """Read the encoder of `folder`.

        `device` and `dtype` are those of the conditions; the arithmetic is float32 on the CPU.
        Raises `TextEncoderError` when a file is missing, damaged or of another schema version.
        """
        super().__init__(folder, max_context_tokens=max_context_tokens)
        folder = Path(folder)
        self.previous_share, self.next_share = _read_shares(_existing(folder, "encoder.json"))
        self.device, self.dtype = torch.device(device), dtype
        path = _existing(folder, "vectors.safetensors")
        try:
            self._vectors = load_file(path)["vectors"].float()
        except (SafetensorError, KeyError, OSError) as error:
            raise TextEncoderError(
                f"{path} is not a file of static vectors ({error}); copy the model folder again"
            ) from error
        num_pieces = self._tokenizer.get_vocab_size()
        if self._vectors.ndim != 2 or self._vectors.shape[0] != num_pieces:
            raise TextEncoderError(
                f"{path} has vectors {tuple(self._vectors.shape)}; allowed: one row for each of "
                f"the tokenizer's {num_pieces} pieces"
            )
        self.context_dim = self.vector_dim = self._vectors.shape[1]
        self.compute_class = "cpu float32"
        self.fingerprint = static_fingerprint(folder, max_context_tokens)

    def encode(self, texts: Sequence[str]) -> TextCondition:
        """The condition of `texts`: context (P, N, D), vector (P, 1, D) of mean square 1.

        Each text is computed by itself, so its bits depend on nothing else. A text of unknown
        pieces only (another script) gives zeros.
        """
        if not texts:
            return empty_condition(self.context_dim, self.vector_dim, device=self.device)
        distinct = list(dict.fromkeys(texts))
        rows = {
            text: self._row(ids)
            for text, ids in zip(distinct, self.token_ids(distinct), strict=True)
        }
        return stack_rows([rows[text] for text in texts], device=self.device)

    def _row(self, ids: list[int]) -> TextRow:
        kept = torch.tensor(ids[: self.max_context_tokens])
        own = self._vectors[kept]
        context = own.clone()
        context[1:] += self.previous_share * own[:-1]
        context[:-1] += self.next_share * own[1:]
        mean = own.mean(0)
        vector = mean * torch.rsqrt(mean.square().mean() + 1e-12)
        return TextRow(
            context=context.to(self.dtype),
            vector=vector.to(self.dtype),
            context_truncated=len(ids) > self.max_context_tokens,
            vector_truncated=len(ids) > self.max_context_tokens,
        )


def static_fingerprint(folder: Path | str, max_context_tokens: int) -> str:
    """Hash of the encoder's files and limit: what decides its features."""
    paths = [_existing(Path(folder), name) for name in FILES]
    return hash_files(paths, {"kind": "static", "max": max_context_tokens})


def _existing(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise TextEncoderError(
            f"the static text encoder in {folder} lacks {name}; needed: {', '.join(FILES)}. "
            "Copy the model folder again, with its text/ folder"
        )
    return path


def _read_shares(path: Path) -> tuple[float, float]:
    """How much of the piece before and after is mixed into a piece."""
    try:
        settings = json.loads(path.read_text("utf-8"))
        version = settings["schema_version"]
        shares = float(settings["previous_share"]), float(settings["next_share"])
    except (ValueError, KeyError, TypeError) as error:
        raise TextEncoderError(
            f"{path} is not the description of a static encoder: {error!r}"
        ) from error
    if version != STATIC_SCHEMA_VERSION:
        raise TextEncoderError(
            f"{path} has schema version {version!r}; allowed: {STATIC_SCHEMA_VERSION}. "
            "Use the hymotion-ray release that wrote the model"
        )
    return shares
