"""The evaluator that a user brings: motions and texts to vectors. Ray-free; brings none itself.

An evaluator is code that the user trusts. It is either `module:name` (an object, or something that
makes one when called) with

    name: str
    embed_motions(motions: Sequence[Motion]) -> array (N, F)
    embed_texts(texts: Sequence[str]) -> array (N, F)     # optional

or a TorchScript file with the methods `embed_motion(joints (L, 22, 3) float32, fps: float) -> (F,)`
and, optionally, `embed_text(text: str) -> (F,)`; joints are in metres, Y up. Its weights may come
from wherever it likes, safetensors for instance.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hymotion_ray.errors import ConfigError
from hymotion_ray.motion.motion import Motion
from hymotion_ray.motion.skeleton import NUM_BODY_JOINTS

Array = NDArray[np.float64]

STANDARD = "humanml3d"
"""Name of the one evaluator (Guo et al. 2022) whose Fréchet distance papers call FID. An embedder
that wraps it says so by this name; every other's distance is named for the embedder."""


class Embedder:
    """An evaluator with its answers checked."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self.name = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "embedder"
        self.knows_texts = hasattr(inner, "embed_texts") or hasattr(inner, "embed_text")

    @property
    def distance_name(self) -> str:
        """What the Fréchet distance on its features is called."""
        return f"fid_{STANDARD}" if self.name == STANDARD else f"frechet_{self.name}"

    def motions(self, motions: Sequence[Motion]) -> Array:
        """Embeddings (N, F)."""
        if hasattr(self._inner, "embed_motions"):
            found = self._inner.embed_motions(motions)
        else:
            found = [
                self._inner.embed_motion(m.joints[:, :NUM_BODY_JOINTS].float(), float(m.fps))
                for m in motions
            ]
        return self._checked(found, len(motions), "motions")

    def texts(self, texts: Sequence[str]) -> Array:
        """Embeddings (N, F); only where `knows_texts`."""
        if hasattr(self._inner, "embed_texts"):
            found = self._inner.embed_texts(texts)
        else:
            found = [self._inner.embed_text(text) for text in texts]
        return self._checked(found, len(texts), "texts")

    def _checked(self, found: Any, num: int, what: str) -> Array:
        if isinstance(found, (list, tuple)):
            found = [row.detach().cpu() if torch.is_tensor(row) else row for row in found]
            found = np.stack([np.asarray(row, dtype=np.float64).ravel() for row in found])
        elif torch.is_tensor(found):
            found = found.detach().cpu().double().numpy()
        array = np.asarray(found, dtype=np.float64)
        if array.ndim != 2 or len(array) != num or not np.isfinite(array).all():
            raise ConfigError(
                f"the embedder {self.name} gave {what} of shape {array.shape} for {num} of them, or"
                " numbers that are not finite; expected (number, features), finite"
            )
        return array


@functools.lru_cache(maxsize=2)
def load_embedder(spec: str) -> Embedder:
    """The evaluator of `module:name` or of a TorchScript file; `ConfigError` says what it lacks."""
    if spec.endswith((".pt", ".pth", ".ts")):
        inner, name = _scripted(Path(spec)), Path(spec).stem
    else:
        inner, name = _imported(spec), spec.rpartition(":")[2]
    if not (hasattr(inner, "embed_motions") or hasattr(inner, "embed_motion")):
        raise ConfigError(
            f"the embedder {spec} has no embed_motions; see docs/evaluation.md for what it needs"
        )
    own = getattr(inner, "name", None)
    return Embedder(inner, own if isinstance(own, str) and own else name)


def _imported(spec: str) -> Any:
    module, sep, name = spec.partition(":")
    if not sep or not module or not name:
        raise ConfigError(f"embedder is {spec!r}; allowed: module:name, or a TorchScript .pt file")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the embedder {spec} cannot be imported ({error}); install its package, or put its"
            " folder on PYTHONPATH"
        ) from error
    return found() if isinstance(found, type) or not hasattr(found, "embed_motions") else found


def _scripted(path: Path) -> Any:
    try:
        return torch.jit.load(str(path), map_location="cpu").eval()
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"the embedder {path} is no TorchScript file ({reason})") from error
