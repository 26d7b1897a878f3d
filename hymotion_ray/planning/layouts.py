"""Pools that public advice on this model family speaks of, with what it says of them.

The public figures are quoted, not checked: they are guesses for the released tool on pools that
nobody at hand has. Each is also a preset: `split_plan.py` makes its plan, in the advised way, and
`render --plan` carries it out. The planner's own choice stands beside them in docs/which-cards.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from hymotion_ray.config.fields import nearest
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PublicLayout:
    """One pool and what is said of it."""

    gpus: str
    """As `--gpus` takes it."""
    model: str
    """1.0 or lite."""
    split: SplitConfig | None = None
    """How a sampler is split over cards in the advised way; None: one copy a card."""
    said_layout: str
    said_clip_s: str = "-"
    """Seconds a clip."""
    said_gb_a_card: str = "-"

    @property
    def name(self) -> str:
        """What `plan --layout` calls it, such as 8xA10."""
        kind, number = self.gpus.split(":")
        return f"{number}x{kind}"

    @property
    def num_gpus(self) -> int:
        """Cards of the pool."""
        return int(self.gpus.split(":")[1])


PUBLIC_LAYOUTS = (
    PublicLayout(gpus="RTX4090:1", model="1.0", said_layout="one card", said_clip_s="8-12"),
    PublicLayout(gpus="RTX4090:2", model="1.0", said_layout="data parallel", said_clip_s="8-12"),
    PublicLayout(gpus="A100-40:1", model="1.0", said_layout="one card", said_clip_s="6-10"),
    PublicLayout(
        gpus="A100-40:2",
        model="1.0",
        split=SplitConfig(way="layers", size=2),
        said_layout="half the model a card, own batches",
        said_clip_s="7-11, 2-4 at once",
        said_gb_a_card="15-18",
    ),
    PublicLayout(
        gpus="A10:2",
        model="1.0",
        split=SplitConfig(way="heads", size=2),
        said_layout="tensor parallel",
    ),
    PublicLayout(
        gpus="A10:4",
        model="1.0",
        split=SplitConfig(way="heads", size=2),
        said_layout="tensor and data parallel",
        said_clip_s="10-15, 4-8 at once",
    ),
    PublicLayout(
        gpus="A10:8",
        model="1.0",
        split=SplitConfig(way="heads", size=2),
        said_layout="tensor parallel pairs",
        said_gb_a_card="12-15",
    ),
    PublicLayout(
        gpus="RTX3090:4", model="lite", said_layout="one copy a card", said_gb_a_card="22-24"
    ),
    PublicLayout(gpus="RTX3080-10G:4", model="lite", said_layout="one copy a card"),
    PublicLayout(gpus="A100-80:4", model="1.0", said_layout="one copy a card"),
)


def public_layout(name: str) -> PublicLayout:
    """The layout called `name`, in any case; `ConfigError` naming the nearest."""
    by_name = {layout.name.lower(): layout for layout in PUBLIC_LAYOUTS}
    if name.lower() not in by_name:
        names = [layout.name for layout in PUBLIC_LAYOUTS]
        raise ConfigError(f"layout is {name!r}{nearest(name, names)}")
    return by_name[name.lower()]
