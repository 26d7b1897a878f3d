"""Measures of whole sets from what was tallied: distances to a reference, and those on embeddings.

Ray-free. Names tell on what a distance was taken; `fid` is said only by an embedder that wraps the
one standard evaluator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hymotion_ray.engine.evaluate.embedder import Embedder
from hymotion_ray.engine.evaluate.tally import Tally
from hymotion_ray.motion.metrics_embedding import (
    Estimate,
    diversity,
    matching_distance,
    multimodality,
    r_precision,
    repeated,
)
from hymotion_ray.motion.metrics_frechet import FEATURES, frechet_distance

Array = NDArray[np.float64]


def feature_distances(own: Tally, reference: Tally) -> dict[str, float]:
    """Fréchet distances on hand-made features, each in units of the reference's deviation."""
    found = {}
    for name in FEATURES:
        real = reference.moments[name]
        found[f"frechet_{name}"] = frechet_distance(
            own.moments[name].scaled_by(real), real.scaled_by(real)
        )
    return found


def embedding_measures(own: Tally, reference: Tally | None, embedder: Embedder) -> dict[str, Any]:
    """All measures that the embeddings at hand allow, under the embedder's name."""
    found: dict[str, Any] = {"embedder": embedder.name, "num_sampled": len(own.sample)}
    if own.embedded is not None and reference is not None and reference.embedded is not None:
        found[embedder.distance_name] = frechet_distance(own.embedded, reference.embedded)
    motions = np.array([motion for _, motion, _ in own.sample])
    if len(motions) >= 2:
        found["diversity"] = _mapping(repeated(lambda g: diversity(motions, g), len(motions)))
    groups: dict[str, list[Array]] = defaultdict(list)
    for text, motion, _ in own.sample:
        if text is not None:
            groups[text].append(motion)
    several = [np.array(group) for group in groups.values() if len(group) >= 2]
    if several:
        num = sum(map(len, several))
        found["multimodality"] = _mapping(repeated(lambda g: multimodality(several, g), num))
    paired = [(text, motion) for _, motion, text in own.sample if text is not None]
    if len(paired) >= 2:
        texts, clips = (np.array([pair[k] for pair in paired]) for k in (0, 1))
        found["matching_distance"] = matching_distance(texts, clips)
        for top in (1, 2, 3):
            estimate = repeated(_ranker(texts, clips, top), len(paired))
            found[f"r_precision_top{top}"] = _mapping(estimate)
    return found


def _ranker(texts: Array, clips: Array, top: int) -> Callable[[np.random.Generator], float]:
    return lambda generator: r_precision(texts, clips, generator, (top,))[0]


def _mapping(estimate: Estimate) -> dict[str, float]:
    return {"mean": estimate.mean, "ci95": estimate.ci95, "num": estimate.num}
