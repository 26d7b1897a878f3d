"""What makes two pieces of work the same. Ray-free; knows no file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest(fields: Mapping[str, Any]) -> str:
    """A 32-character name of the given JSON-ready fields: equal fields, equal name."""
    text = json.dumps(fields, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def item_identity(
    *,
    folder_identity: str,
    text: str,
    num_frames: int,
    noise_seeds: tuple[int, ...],
    num_steps: int,
    guidance_scale: float,
) -> str:
    """Identity of one clip: everything that decides its bits within a class.

    `folder_identity` stands for model, text encoder, solver, precision and body; the rest is the
    item's own. `noise_seeds` are the candidates of which the best is kept, one seed as a rule.
    """
    return digest(
        {
            "folder": folder_identity,
            "text": text,
            "num_frames": num_frames,
            "noise_seeds": list(noise_seeds),
            "num_steps": num_steps,
            "guidance_scale": guidance_scale,
        }
    )
