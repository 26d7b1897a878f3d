"""Measures on embeddings of clips and texts that some evaluator gave: the formulas alone.

Knows arrays, not the evaluator. Definitions as in Guo et al. 2022 ("Generating Diverse and Natural
3D Human Motions from Text", section 5), whose numbers hold for their evaluator only.

Shape letters: N clips, F features, T texts, K clips a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

POOL = 32
"""Texts that a clip is ranked against, its own among them."""
NUM_PAIRS = 300
"""Pairs of clips for diversity."""
PAIRS_A_TEXT = 10
"""Pairs of clips of one text for multimodality."""
REPEATS = 20
"""Random draws that a measure is the mean of."""


@dataclass(frozen=True)
class Estimate:
    """Mean of repeated draws, and half of its 95 % confidence interval."""

    mean: float
    ci95: float
    num: int
    """Clips that went in."""


def repeated(draw: Callable[[np.random.Generator], float], num: int, seed: int = 0) -> Estimate:
    """The mean of 20 draws with 1.96 standard errors, the same for the same seed."""
    values = np.array([draw(np.random.default_rng([seed, k])) for k in range(REPEATS)])
    return Estimate(float(values.mean()), float(1.96 * values.std() / np.sqrt(REPEATS)), num)


def r_precision(
    texts: Array, motions: Array, generator: np.random.Generator, tops: Sequence[int] = (1, 2, 3)
) -> list[float]:
    """Share of clips whose own text is among the nearest 1, 2, 3 of 32 by Euclidean distance.

    texts, motions: (N, F), row by row. Clips are dealt to pools at random and what does not fill
    the last pool is left out; under 32 clips there is one pool of all. Of equally near texts the
    own one comes last, so that a constant embedding earns nothing.
    """
    size = min(POOL, len(motions))
    order = generator.permutation(len(motions))
    ranks = []
    for start in range(0, len(order) - size + 1, size):
        pool = order[start : start + size]
        apart = np.linalg.norm(motions[pool][:, None] - texts[pool][None], axis=-1)
        own = np.diag(apart)
        ranks.append((apart <= own[:, None]).sum(axis=1) - 1)
    rank = np.concatenate(ranks)
    return [float((rank < top).mean()) for top in tops]


def matching_distance(texts: Array, motions: Array) -> float:
    """MM-Dist: mean distance of each clip to its text, both (N, F)."""
    return float(np.linalg.norm(texts - motions, axis=-1).mean())


def diversity(motions: Array, generator: np.random.Generator) -> float:
    """Mean distance over 300 random pairs of different clips (N, F), N at least 2."""
    num_pairs = min(NUM_PAIRS, len(motions) * (len(motions) - 1) // 2)
    first = generator.integers(len(motions), size=num_pairs)
    other = (first + generator.integers(1, len(motions), size=num_pairs)) % len(motions)
    return float(np.linalg.norm(motions[first] - motions[other], axis=-1).mean())


def multimodality(groups: Sequence[Array], generator: np.random.Generator) -> float:
    """Mean distance over 10 random pairs of clips of one text, over texts of 2 clips and more.

    groups: one (K, F) a text.
    """
    of_texts = []
    for motions in groups:
        first = generator.integers(len(motions), size=PAIRS_A_TEXT)
        other = (first + generator.integers(1, len(motions), size=PAIRS_A_TEXT)) % len(motions)
        of_texts.append(np.linalg.norm(motions[first] - motions[other], axis=-1).mean())
    return float(np.mean(of_texts))
