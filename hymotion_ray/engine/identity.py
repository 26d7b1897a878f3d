"""What makes two pieces of work the same. Ray-free; knows no file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

_compact = json.JSONEncoder(separators=(",", ":")).encode


def digest(fields: Mapping[str, Any]) -> str:
    """A 32-character name of the given JSON-ready fields: equal fields, equal name."""
    text = json.dumps(fields, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class PromptIdentity:
    """Identities of the clips of one prompt: everything that decides a clip's bits within a class.

    `folder_identity` stands for model, text encoder, solver, precision and body; the rest is the
    prompt's own.
    """

    def __init__(
        self,
        *,
        folder_identity: str,
        text: str,
        num_frames: int,
        num_steps: int,
        guidance_scale: float,
    ) -> None:
        shared = [folder_identity, text, num_frames, num_steps, float(guidance_scale)]
        self._shared = hashlib.sha256(_compact(shared).encode())

    def of(self, noise_seeds: Sequence[int]) -> bytes:
        """The 16 bytes of one clip. `noise_seeds` are the candidates of which the best is kept."""
        own = self._shared.copy()
        own.update(",".join(map(str, noise_seeds)).encode())
        return own.digest()[:16]


def noise_seeds(seed: int, best_of: int) -> tuple[int, ...]:
    """Candidates of one clip: with best-of K, the K seeds from seed * K on, no other clip's."""
    if best_of == 1:
        return (seed,)
    return tuple(seed * best_of + k for k in range(best_of))
