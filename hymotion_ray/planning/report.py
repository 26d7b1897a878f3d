"""A plan as lines of text. Knows the mapping that `plan` makes, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def words(plan: Mapping[str, Any]) -> str:
    """Tables of placement, memory and cost, with every figure's source."""
    gpus = ", ".join(f"{number} x {kind}" for kind, number in plan["gpus"].items())
    parts = [
        f"{plan['model']} on {gpus}, {plan['clips']:,} clips",
        _table(plan["placement"]),
        "Memory, GiB\n" + _table([_flat(row) for row in plan["memory"]]),
        f"{plan['clips_per_s']} clips/s, {plan['hours']:,.2f} hours, {_cost(plan['cost'])}",
        "\n".join(f"- {reason}" for reason in plan["reasons"]),
    ]
    if plan["settings"]:
        parts.append("Settings: " + " ".join(f"{k}={v}" for k, v in plan["settings"].items()))
    if plan["alternatives"]:
        rows = [{k: v for k, v in row.items() if k != "encoder"} for row in plan["alternatives"]]
        parts.append("The same work on one machine of each kind, cheapest first\n" + _table(rows))
    parts.append("\n".join(f"{what}: {source}" for what, source in plan["sources"].items()))
    return "\n\n".join(parts)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    parts = {name: size for name, size in row["gib"].items() if name != "total"}
    total = {"total": row["gib"]["total"], "card": row["card_gib"]}
    return {"stage": row["stage"], "gpu": row["gpu"], **total, **parts}


def _cost(cost: Mapping[str, Any]) -> str:
    if cost["usd"] is None:
        return f"cost unknown: {cost['missing']}"
    return f"{cost['usd']:.2f} USD, {cost['usd_per_1000_clips']:.3f} USD per 1,000 clips"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under one header; columns that a row lacks stay empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
