"""The clips of one piece, measured: a row of numbers each, and sums for the measures of sets.

Runs in a worker process or in the driver; Ray-free. Does not know how pieces are dealt out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hymotion_ray.engine.evaluate.embedder import load_embedder
from hymotion_ray.engine.evaluate.source import Clip, Piece, Reject, find_source, read_piece
from hymotion_ray.engine.evaluate.truth import truth_of
from hymotion_ray.motion.metrics import METRIC_NAMES, clip_metrics, sliding_against
from hymotion_ray.motion.metrics_actions import STATISTIC_NAMES, statistics
from hymotion_ray.motion.metrics_frechet import FEATURES, Moments
from hymotion_ray.motion.motion import Motion

Array = NDArray[np.float64]

SLIDING_AGAINST = "sliding_against_truth"
POSITION_ERROR = "position_error"
TRUTH_NAMES = (SLIDING_AGAINST, POSITION_ERROR)
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("text", pa.string()),
        ("num_frames", pa.int32()),
        ("fps", pa.float32()),
        *((name, pa.float64()) for name in (*METRIC_NAMES, *TRUTH_NAMES)),
        *((f"does_{name}", pa.float64()) for name in STATISTIC_NAMES),
    ]
)
"""A row a clip: measures (null where there is nothing to measure), then what the body does."""
_AT_ONCE = 32


@dataclass
class Measured:
    """What came of a piece."""

    rows: pa.Table = field(default_factory=SCHEMA.empty_table)
    rejects: list[Reject] = field(default_factory=list)
    moments: dict[str, Moments] = field(default_factory=dict)
    """By the name of the features."""
    embedded: Array | None = None
    """(N, F) of the clips of `rows`, where an embedder is given."""
    embedded_texts: Array | None = None
    """(N, F) likewise; rows of clips without a text are NaN."""


def measure_piece(piece: Piece, embedder: str | None = None, truth: str | None = None) -> Measured:
    """Measure a piece; one clip is in memory at a time, or 32 for an embedder.

    embedder, truth: see `EvaluateConfig`. Raises `ConfigError` for an embedder that does not work.
    """
    found = Measured()
    rows: list[dict[str, object]] = []
    features: dict[str, list[Array]] = {name: [] for name in FEATURES}
    vectors: list[tuple[Array, Array | None]] = []
    waiting: list[Clip] = []
    truths = find_source(truth) if truth else None
    for clip in read_piece(piece):
        if isinstance(clip, Reject):
            found.rejects.append(clip)
            continue
        real = truth_of(truths, clip.name) if truths else None
        rows.append(_row(clip, real))
        for name, feature in FEATURES.items():
            features[name].append(feature(clip.motion))
        if embedder:
            waiting.append(clip)
            if len(waiting) == _AT_ONCE:
                vectors.append(_embed(embedder, waiting))
                waiting = []
    if waiting and embedder:
        vectors.append(_embed(embedder, waiting))
    found.rows = pa.Table.from_pylist(rows, schema=SCHEMA)
    if rows:
        found.moments = {name: Moments.of(np.stack(held)) for name, held in features.items()}
    if vectors:
        found.embedded = np.concatenate([motions for motions, _ in vectors])
        texts = [text for _, text in vectors if text is not None]
        found.embedded_texts = np.concatenate(texts) if texts else None
    return found


def _row(clip: Clip, truth: Motion | None) -> dict[str, object]:
    against: dict[str, float | None] = dict.fromkeys(TRUTH_NAMES)
    if truth is not None:
        num_frames = min(clip.motion.num_frames, truth.num_frames)
        apart = clip.motion.joints[:num_frames, :22] - truth.joints[:num_frames, :22]
        against[POSITION_ERROR] = float(apart.norm(dim=-1).mean())
        against[SLIDING_AGAINST] = sliding_against(clip.motion, truth)
    return {
        "name": clip.name,
        "text": clip.texts[0] if clip.texts else None,
        "num_frames": clip.motion.num_frames,
        "fps": clip.motion.fps,
        **vars(clip_metrics(clip.motion)),
        **against,
        **{f"does_{name}": value for name, value in vars(statistics(clip.motion)).items()},
    }


def _embed(spec: str, clips: list[Clip]) -> tuple[Array, Array | None]:
    embedder = load_embedder(spec)
    motions = embedder.motions([clip.motion for clip in clips])
    if not embedder.knows_texts:
        return motions, None
    said = [k for k, clip in enumerate(clips) if clip.texts]
    texts = np.full_like(motions, np.nan)
    if said:
        texts[said] = embedder.texts([clips[k].texts[0] for k in said])
    return motions, texts
