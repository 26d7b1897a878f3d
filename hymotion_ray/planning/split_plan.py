"""The plan of a public layout: what it takes of each card, how fast it is, and the settings for it.

A layout without a split is an ordinary plan. One with a split is that plan with the samplers' part
reckoned again: shares of weights, keys and values, and what the processes say to each other. All
of it is computed, and the links between cards are assumed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hymotion_ray.config.fields import to_mapping
from hymotion_ray.config.split import SplitConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.planning.catalogue import Catalogue, Gpu
from hymotion_ray.planning.layouts import PublicLayout
from hymotion_ray.planning.memory import GIB, Memory, encoder_memory
from hymotion_ray.planning.placement import (
    CPU_ENCODING_RATE,
    MARGIN,
    ROWS,
    Workload,
    sampler_memory,
)
from hymotion_ray.planning.plan import START_S, Request, make_plan, workload
from hymotion_ray.planning.speed import encoding_rate, sampling_seconds

LINK_BYTES_S = 12e9
"""Between two cards of a host without NVLink: half of what PCI Express 4.0 x16 moves in theory
(PCI-SIG: 31.5 GB/s, shared with the other direction's waiting). Assumed, not measured."""


def layout_plan(layout: PublicLayout, request: Request, catalogue: Catalogue) -> dict[str, Any]:
    """The plan of `request` in the way that `layout` says, in the form of `Plan.to_mapping`.

    Its `layout` holds what public advice says. Raises `ConfigError` where nothing fits.
    """
    document = make_plan(request, catalogue).to_mapping()
    document["layout"] = {
        "name": layout.name,
        "advised": layout.said_layout,
        "advised_s_a_clip": layout.said_clip_s,
        "advised_gb_a_card": layout.said_gb_a_card,
    }
    if layout.split is not None:
        (kind,) = request.gpus
        _reckon_split(document, layout.split, catalogue.gpu(kind), request)
    fullest = max(row["gib"]["total"] for row in document["memory"] if row["stage"] == "sample")
    document["layout"]["gb_a_card"] = round(fullest * GIB / 1e9, 1)
    document["reasons"].insert(
        0,
        f"publicly advised: {_said(layout)}; a sampler's process takes {fullest:.1f} GiB here",
    )
    return document


def _reckon_split(document: dict[str, Any], split: SplitConfig, gpu: Gpu, request: Request) -> None:
    """Put the samplers' groups in place of samplers of one card each."""
    work, size = workload(request), split.size
    if work.precision == "float8":
        raise ConfigError(
            "precision is 'float8' with a layout that splits samplers, which do not have it; "
            "allowed: another precision, or --gpus in place of --layout"
        )
    groups = request.gpus[gpu.name] // size
    encoder = encoder_memory()
    share = encoder.total / (gpu.memory_bytes * MARGIN)
    for taken in (encoder.total, 0) if request.has_encoder and share < 1 else (0,):
        found = _fitting(gpu, work, split, gpu.memory_bytes - taken)
        if found is not None and groups:
            break
    else:
        raise ConfigError(
            f"a sampler split over {size} cards does not fit {request.gpus[gpu.name]} x {gpu.name};"
            " allowed: more or larger cards"
        )
    rows, memory = found
    rate = groups * rows / group_seconds(gpu, work, split, rows)
    on_cpu = request.has_encoder and not taken
    if request.has_encoder:
        prompts = CPU_ENCODING_RATE if on_cpu else encoding_rate(gpu)
        rate = min(rate, prompts * request.seeds)
    hours = (request.num_clips / rate + START_S) / 3600
    encoders = [row for row in document["placement"] if row["stage"] == "encode"]
    for row in encoders:
        row |= {
            "gpu": "CPU" if on_cpu else gpu.name,
            "share": 0.0 if on_cpu else round(share, 2),
            "precision": "bfloat16",
            "prompts_per_s": round(prompts, 2),
        }
    document["placement"] = [
        *encoders,
        {
            "stage": "sample",
            "gpu": gpu.name,
            "number": groups,
            "cards": size,
            "split": str(split),
            "rows": rows,
            "in_flight": split.num_micro_batches if split.way == "layers" else 1,
            "clips_per_s": round(rate, 2),
        },
    ]
    sizes = {"card_gib": gpu.usable_gib, "planned_gib": round(MARGIN * gpu.memory_bytes / GIB, 1)}
    beside = [] if on_cpu or not encoders else [("encode", encoder)]
    document["memory"] = [
        {"stage": stage, "gpu": gpu.name, "gib": held.in_gib(), **sizes}
        for stage, held in [*beside, ("sample", memory)]
    ]
    way = {k: v for k, v in to_mapping(split).items() if k in ("way", "size")}
    if split.way == "layers":
        way["num_micro_batches"] = split.num_micro_batches
    document["settings"] = {"split": way, "resources.rows": rows}
    if encoders:
        document["settings"]["resources.encoder_gpus"] = 0.0 if on_cpu else round(share, 2)
    _price(document["cost"], hours / document["hours"])
    document["clips_per_s"], document["hours"] = round(rate, 3), round(hours, 5)
    document["reasons"] = [
        f"samplers of {size} cards each ({split}), {groups} of them; the network takes "
        f"{memory.weights / GIB:.2f} GiB of each card",
        f"the processes of a group are reckoned to say {LINK_BYTES_S / 1e9:g} GB a second to each "
        "other, half of PCI Express 4.0 x16; not measured",
        "without --layout the planner chooses among arrangements with one copy a card",
    ]


def _price(cost: dict[str, Any], factor: float) -> None:
    for row in (cost, *cost["machines"]):
        for name in ("usd", "usd_per_1000_clips"):
            if row.get(name) is not None:
                row[name] = round(row[name] * factor, 4)


def _fitting(gpu: Gpu, work: Workload, split: SplitConfig, room: int) -> tuple[int, Memory] | None:
    """The most rows, and what one process takes of its card; None where not one row fits."""
    for rows in ROWS:
        if rows != split.fitting_rows(rows):
            continue
        memory = share_of(sampler_memory(gpu, work, rows, room), split)
        if memory.total + gpu.memory_bytes - room <= MARGIN * gpu.memory_bytes:
            return rows, memory
    return None


def share_of(whole: Memory, split: SplitConfig) -> Memory:
    """What one of the processes takes of what a sampler of one card would."""
    if split.way == "rows":
        return dataclasses.replace(whole, activations=-(-whole.activations // split.size))
    parts = {
        name: -(-getattr(whole, name) // split.size) for name in ("weights", "key_value_cache")
    }
    return dataclasses.replace(whole, **parts)


def group_seconds(gpu: Gpu, work: Workload, split: SplitConfig, rows: int) -> float:
    """Seconds of `rows` clips on one group: work shared out, waiting, and what is sent."""
    alone = sampling_seconds(
        work.network,
        gpu,
        rows=rows,
        num_frames=work.num_frames,
        num_tokens=work.num_tokens,
        seeds=min(work.seeds, rows),
        evaluations=work.evaluations,
        null_evaluations=work.null_evaluations,
        precision=work.precision_on(gpu),
    )
    network, size = work.network, split.size
    residual = 2 * rows * work.num_frames * network.feat_dim * 2
    if split.way == "heads":
        # A ring sum moves 2 (n - 1) / n of what is summed: two sums a double block, one a single.
        sums = 2 * network.num_double_blocks + network.num_single_blocks
        sent, waiting = sums * residual * 2 * (size - 1) / size, 1.0
    elif split.way == "rows":
        sent, waiting = 2 * rows * work.num_frames * network.input_dim * 2.0, 1.0
    else:
        pieces = split.num_micro_batches
        sent, waiting = float(residual), (pieces + size - 1) / pieces
    return alone / size * waiting + work.evaluations * sent / LINK_BYTES_S


def _said(layout: PublicLayout) -> str:
    """What public advice says, as far as it does."""
    said = (layout.said_gb_a_card, "GB a card"), (layout.said_clip_s, "s a clip")
    parts = [f"{value} {unit}" for value, unit in said if value != "-"]
    return ", ".join([layout.said_layout, *parts])
