"""Evaluators that tests bring: one that knows, one that kills its process, two that do not work."""

from __future__ import annotations

import os

import numpy as np


class Travel:
    """Embeds a clip as how far it goes and rises, a text as what it says of that."""

    name = "Travel Judge 1"

    def embed_motions(self, motions):
        return [
            [
                float(m.joints[-1, 0, 2] - m.joints[0, 0, 2]),
                10 * float(m.joints[:, 0, 1].max() - m.joints[0, 0, 1]),
            ]
            for m in motions
        ]

    def embed_texts(self, texts):
        return np.array([[5.0, 0.0] if "walk" in text else [0.0, 4.0] for text in texts])


class Standard(Travel):
    """Says that it wraps the one evaluator whose distance is called FID."""

    name = "HumanML3D"


class Lethal(Travel):
    """Ends its process at clips that rise."""

    def embed_motions(self, motions):
        found = super().embed_motions(motions)
        if any(rise > 1 for _, rise in found):
            os._exit(1)
        return found


class Broken(Travel):
    """Gives one row whatever it gets."""

    def embed_motions(self, motions):
        return np.zeros((1, 3))


class Empty:
    """Knows no motions."""
