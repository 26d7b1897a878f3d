"""Checks of a local model folder before anything heavy reads it. Knows no network and no hub.

Model weights are read from folders only; nothing is ever downloaded.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hymotion_ray.errors import MissingDependencyError, TextEncoderError

LFS_START = b"version https://git-lfs"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def require_package(package: str, install: str, why: str) -> None:
    """Raise `MissingDependencyError` unless `package` can be imported."""
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(
            f"{why} needs the package {package}, which is not installed: pip install '{install}'"
        )


def check_folder(path: str | Path | None, what: str, setting: str, hub_name: str) -> Path:
    """The folder of a model as a `Path`; `TextEncoderError` when it is not given or not there."""
    advice = f"download it once, for example: hf download {hub_name} --local-dir DIR"
    if path is None:
        raise TextEncoderError(
            f"the text encoder needs the folder of {what}, and none is given; set {setting}, and "
            f"where you have no such folder, {advice}"
        )
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise TextEncoderError(
            f"{setting} is {str(path)!r}, which is no folder on this machine; needed: a local "
            f"folder of {what} (names of the hub are not looked up); {advice}"
        )
    return folder


def read_model_config(folder: Path, what: str, model_types: Sequence[str]) -> dict[str, Any]:
    """The folder's config.json, checked to be of one of `model_types`."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
        model_type = config.get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise TextEncoderError(
            f"{folder} is not a model folder of {what}: config.json cannot be read ({error})"
        ) from error
    if model_type not in model_types:
        raise TextEncoderError(
            f"{folder} holds a model of type {model_type!r}; allowed: {' or '.join(model_types)}, "
            f"as {what} has"
        )
    return config


def check_tokenizer_files(folder: Path, what: str) -> list[Path]:
    """The folder's tokenizer files; `TextEncoderError` when there are too few to build one."""
    present = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    names = {path.name for path in present}
    if "tokenizer.json" not in names and not {"vocab.json", "merges.txt"} <= names:
        raise TextEncoderError(
            f"{folder} lacks the tokenizer of {what}: neither tokenizer.json nor vocab.json with "
            "merges.txt is there; copy them from where the weights came from"
        )
    _refuse_pointers(present)
    return present


def read_tokenizer(folder: Path, what: str) -> Any:
    """The tokenizer of transformers in a folder; `TextEncoderError` when missing or damaged."""
    require_package("transformers", "hymotion-ray[text]", "the Qwen3 and CLIP text encoder")
    from transformers import AutoTokenizer

    check_tokenizer_files(folder, what)
    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library's readers raise many kinds
        raise TextEncoderError(f"the tokenizer in {folder} cannot be read: {error}") from error


def check_weight_files(folder: Path, what: str) -> list[Path]:
    """The folder's safetensors files, all shards that its index names among them."""
    index = folder / "model.safetensors.index.json"
    weights = sorted(folder.glob("*.safetensors"))
    _refuse_pointers(weights)
    if not weights:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        has = f"only {', '.join(pickled)}, which may run code when read" if pickled else "none"
        raise TextEncoderError(
            f"{folder} holds no weights of {what} that can be read: needed *.safetensors, got {has}"
        )
    if not index.is_file():
        return weights
    try:
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TextEncoderError(f"{index} is damaged ({error!r}); copy the folder again") from error
    missing = sorted(shards - {path.name for path in weights})
    if missing:
        raise TextEncoderError(
            f"{folder} lacks {len(missing)} of {len(shards)} weight files of {what}: "
            f"{', '.join(missing[:5])}; finish the download"
        )
    return weights


def _refuse_pointers(paths: Sequence[Path]) -> None:
    for path in paths:
        with open(path, "rb") as file:
            if file.read(len(LFS_START)) == LFS_START:
                raise TextEncoderError(
                    f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in the "
                    "folder it was cloned to, and copy the folder again"
                )
