"""A plan's arrangement as tables, settings and reasons. Knows nothing of prices or hours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hymotion_ray.planning.catalogue import Gpu
from hymotion_ray.planning.memory import GIB
from hymotion_ray.planning.placement import MARGIN, Arrangement


def memory_table(best: Arrangement) -> list[dict[str, Any]]:
    """GiB by stage, kind and purpose."""
    rows: list[dict[str, Any]] = []
    if best.encoder_gpu is not None:
        rows.append(_memory_row("encode", best.encoder_gpu, best.encoder_memory.in_gib()))
    rows += [_memory_row("sample", s.gpu, s.memory.in_gib()) for s in best.samplers]
    return rows


def _memory_row(stage: str, gpu: Gpu, gib: dict[str, float]) -> dict[str, Any]:
    return {
        "stage": stage,
        "gpu": gpu.name,
        "gib": gib,
        "card_gib": gpu.usable_gib,
        "planned_gib": round(MARGIN * gpu.memory_bytes / GIB, 1),
    }


def placement_table(best: Arrangement) -> list[dict[str, Any]]:
    """Stage, kind, number, share of a card, rows a batch and clips a second."""
    rows: list[dict[str, Any]] = []
    if best.encoder_place != "none":
        rows.append(
            {
                "stage": "encode",
                "gpu": best.encoder_gpu.name if best.encoder_gpu else "CPU",
                "number": 1,
                "share": best.encoder_share,
                "precision": best.encoder_precision,
                "prompts_per_s": round(best.prompts_per_s, 2),
            }
        )
    for samplers in best.samplers:
        rows.append(
            {
                "stage": "sample",
                "gpu": samplers.gpu.name,
                "number": samplers.num_gpus,
                "share": round(samplers.share, 2),
                "rows": samplers.rows,
                "clips_per_s": round(samplers.clips_per_s, 2),
            }
        )
    return rows


def settings(best: Arrangement) -> dict[str, Any]:
    """The settings of `render` that carry the plan out."""
    values: dict[str, Any] = {"resources.rows": min(s.rows for s in best.samplers)}
    if best.encoder_place != "none":
        # What an encoder leaves of its card is its sampler's; the others have theirs to themselves.
        values["resources.encoder_gpus"] = best.encoder_share
        if best.encoder_precision != "bfloat16":
            values["text.precision"] = best.encoder_precision
    return values


def reasons(best: Arrangement, others: Sequence[Arrangement]) -> list[str]:
    """Why it is arranged so, and what would change it."""
    words = [f"{best.reason}; the fastest of {1 + len(others)} arrangements that fit"]
    if best.changes_results:
        words.append(
            f"a {best.encoder_precision} encoder gives other features than bf16: a card of 24 GB "
            "that it has to itself, or one of 32 GB to share, would keep results exact"
        )
    exact = [a for a in others if a.changes_results == best.changes_results]
    if exact:
        words.append(f"next best: {exact[0].reason}, {exact[0].clips_per_s:.2f} clips/s")
    if best.encoder_place == "cpu":
        words.append(
            "encoding limits the whole job: one card with 18 GiB free for the encoder removes that"
        )
    for samplers in best.samplers:
        if samplers.rows < 16:
            words.append(
                f"{samplers.gpu.name} takes only {samplers.rows} clips a batch beside what else it "
                "holds; freeing memory there makes it faster"
            )
    if len(best.samplers) > 1 and len({s.rows for s in best.samplers}) > 1:
        words.append("cards of unlike memory run batches of their own sizes, which are other cells")
    return words
