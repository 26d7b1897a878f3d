"""Pools that public advice on this model family speaks of, with what it says of them.

The public figures are quoted, not checked: they are guesses for the released tool on pools that
nobody at hand has. A plan's own figures stand beside them in docs/which-cards.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublicLayout:
    """One pool and what is said of it."""

    gpus: str
    """As `--gpus` takes it."""
    model: str
    """1.0 or lite."""
    said_layout: str
    said_clip_s: str = "-"
    """Seconds a clip."""
    said_gb_a_card: str = "-"


PUBLIC_LAYOUTS = (
    PublicLayout(gpus="RTX4090:1", model="1.0", said_layout="one card", said_clip_s="8-12"),
    PublicLayout(gpus="RTX4090:2", model="1.0", said_layout="data parallel", said_clip_s="8-12"),
    PublicLayout(gpus="A100-40:1", model="1.0", said_layout="one card", said_clip_s="6-10"),
    PublicLayout(
        gpus="A100-40:2",
        model="1.0",
        said_layout="half the model a card, own batches",
        said_clip_s="7-11, 2-4 at once",
        said_gb_a_card="15-18",
    ),
    PublicLayout(gpus="A10:2", model="1.0", said_layout="tensor parallel"),
    PublicLayout(
        gpus="A10:4",
        model="1.0",
        said_layout="tensor and data parallel",
        said_clip_s="10-15, 4-8 at once",
    ),
    PublicLayout(
        gpus="A10:8", model="1.0", said_layout="tensor parallel pairs", said_gb_a_card="12-15"
    ),
    PublicLayout(
        gpus="RTX3090:4", model="lite", said_layout="one copy a card", said_gb_a_card="22-24"
    ),
    PublicLayout(gpus="RTX3080-10G:4", model="lite", said_layout="one copy a card"),
    PublicLayout(gpus="A100-80:4", model="1.0", said_layout="one copy a card"),
)
