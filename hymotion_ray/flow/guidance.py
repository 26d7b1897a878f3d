"""Classifier-free guidance. Knows two velocities and a scale.

Source: Ho & Salimans, Classifier-free diffusion guidance (2022), equation 6, in the form where
scale 1 is the conditional velocity itself.
"""

from __future__ import annotations

from torch import Tensor


def needs_null(scale: float) -> bool:
    """Whether the null branch is computed at all: only above scale 1."""
    return scale > 1.0


def guide(v_text_then_null: Tensor, scale: float | Tensor) -> Tensor:
    """`v_null + scale (v_text - v_null)` (B, L, 201), of both branches' velocities (2B, L, 201).

    A scale a row is a tensor (B, 1, 1).
    """
    v_text, v_null = v_text_then_null.chunk(2)
    return v_null + scale * (v_text - v_null)
