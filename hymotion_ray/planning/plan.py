"""A plan: which stage sits where, how long a job takes and what it costs, before it is paid for.

Nothing here is measured: figures are computed by `memory` and `speed` from shapes, from constants
fitted on one H200, and from the public data of the catalogue. `Plan.sources` says so figure by
figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hymotion_ray.config.fields import require
from hymotion_ray.config.network import NetworkConfig
from hymotion_ray.config.sampling import FLOAT8_WORDS, Method, Precision, SamplingConfig
from hymotion_ray.errors import ConfigError
from hymotion_ray.planning.carried import SCHEMA, shape_of
from hymotion_ray.planning.catalogue import Catalogue, Machine
from hymotion_ray.planning.evaluations import null_evaluations, text_evaluations
from hymotion_ray.planning.fitted import fitted
from hymotion_ray.planning.placement import Arrangement, Workload, arrange
from hymotion_ray.planning.tables import memory_table, placement_table, reasons, settings
from hymotion_ray.planning.training import choose, fits, training_settings, training_tables

NUM_TOKENS = 36
"""Text tokens of a usual prompt of the releases' encoder."""
START_S = 120
"""Start of a cluster's processes and loading of weights, added once to a job."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be planned."""

    network: NetworkConfig
    model_name: str
    has_encoder: bool = True
    gpus: Mapping[str, int]
    """Cards by kind."""
    num_clips: int = 1000
    duration_s: float = 5.0
    seeds: int = 1
    num_steps: int = 50
    guidance_scale: float = 5.0
    method: Method = "euler"
    guidance_interval: tuple[float, float] = (0.0, 1.0)
    null_every: int = 1
    precision: Precision = "auto"
    spot: bool = False
    prices: Mapping[str, float] = field(default_factory=dict)
    """USD an hour of one GPU of a kind, instead of the catalogue's."""

    def __post_init__(self) -> None:
        require(self.num_clips >= 1, "clips", self.num_clips, "at least 1")
        require(self.seeds >= 1, "seeds", self.seeds, "at least 1")
        require(
            0 < self.duration_s <= 12, "duration", self.duration_s, "above 0, at most 12 seconds"
        )
        require(1 <= self.num_steps <= 1000, "steps", self.num_steps, "1 to 1000")
        _ = self.sampling

    @property
    def sampling(self) -> SamplingConfig:
        """How clips are sampled; `ConfigError` for what is not allowed."""
        return SamplingConfig(
            num_steps=self.num_steps,
            guidance_scale=self.guidance_scale,
            method=self.method,
            guidance_interval=self.guidance_interval,
            null_every=self.null_every,
        )

    @property
    def shortcuts(self) -> tuple[str, ...]:
        """What makes the clips approximate, in words; () when nothing does."""
        found = [f"{self.method} solver"] if self.method != "euler" else []
        found += self.sampling.shortcuts
        return (*found, *([FLOAT8_WORDS] if self.precision == "float8" else []))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is expected of a job on a pool."""

    request: Request
    arrangement: Arrangement
    others: tuple[Arrangement, ...]
    """The other arrangements that fit, best first."""
    hours: float
    cost: Mapping[str, Any]
    """USD in all and by 1,000 clips, with the machines reckoned; None where no price is known."""
    alternatives: tuple[Mapping[str, Any], ...]
    """Every machine that can be had, at this work, cheapest by clip first."""
    catalogue_date: str

    def to_mapping(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "schema": SCHEMA,
            "work": "render",
            "model": self.request.model_name,
            "network": shape_of(self.request.network),
            "gpus": dict(self.request.gpus),
            "clips": self.request.num_clips,
            "memory": memory_table(self.arrangement),
            "placement": placement_table(self.arrangement),
            "settings": settings(self.arrangement),
            "clips_per_s": round(self.arrangement.clips_per_s, 3),
            "hours": round(self.hours, 5),
            "start_s": START_S,
            "cost": dict(self.cost),
            "reasons": self._reasons(),
            "alternatives": [dict(a) for a in self.alternatives],
            "sources": {
                "memory": "computed from shapes and constants; these from "
                f"{fitted().memory.source}; the encoder's weights are public",
                "clips_per_s": "computed: products and memory traffic, scaled by data-sheet "
                f"figures from what one H200 was measured at: {fitted().speed.source}",
                "hours": f"computed; {START_S} s of start-up included",
                "cost": f"public prices of the catalogue of {self.catalogue_date}",
            },
        }

    def _reasons(self) -> list[str]:
        words = reasons(self.arrangement, self.others)
        own = self.cost["usd_per_1000_clips"]
        if self.alternatives and own is not None:
            kinds = {row["gpu"].split(" x ")[1]: row for row in reversed(self.alternatives)}
            by_price = sorted(kinds.items(), key=lambda item: item[1]["usd_per_1000_clips"])
            listed = [f"{kind} {row['usd_per_1000_clips']:g}" for kind, row in by_price]
            words.append(
                f"USD per 1,000 clips on the cheapest machine of each kind: {', '.join(listed)}; "
                f"on this pool, start-up included: {own:g}"
            )
        if self.request.shortcuts:
            words.append(
                f"reckoned with {'; '.join(self.request.shortcuts)}: render needs the same flags, "
                "which a plan's settings do not bring"
            )
        return words


def parse_gpus(text: str, catalogue: Catalogue) -> dict[str, int]:
    """`KIND:N,KIND:N` as numbers by the catalogue's names; N is 1 where it is left out.

    Raises `ConfigError` for an unknown kind or a number below 1.
    """
    pool: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"(.+?)(?::(\d{1,6}))?", part)
        kind = catalogue.gpu(match[1] if match else part).name
        number = int(match[2] or 1) if match else 0
        require(number >= 1, "gpus", part, "KIND:N with N at least 1, such as A10:4,A100-40:2")
        pool[kind] = pool.get(kind, 0) + number
    if not pool:
        raise ConfigError(f"gpus is {text!r}; allowed: KIND:N,KIND:N such as A10:4,A100-40:2")
    return pool


def make_plan(request: Request, catalogue: Catalogue) -> Plan:
    """The plan of a render job; `ConfigError` where nothing fits, naming what would."""
    pool = {kind: (catalogue.gpu(kind), number) for kind, number in request.gpus.items()}
    work = workload(request)
    best, *others = arrange(pool, work)
    hours = (request.num_clips / best.clips_per_s + START_S) / 3600
    return Plan(
        request=request,
        arrangement=best,
        others=tuple(others),
        hours=hours,
        cost=_cost(request, catalogue, hours),
        alternatives=tuple(_alternatives(request, work, catalogue)),
        catalogue_date=catalogue.date,
    )


def make_training_plan(request: Request, catalogue: Catalogue) -> dict[str, Any]:
    """The plan of training on `num_clips` clips of 12 s once, in the form of `Plan.to_mapping`.

    Raises `ConfigError` for a card that holds no way of training.
    """
    pool = {kind: (catalogue.gpu(kind), number) for kind, number in request.gpus.items()}
    chosen = choose(request.network, pool)
    memory, placement = training_tables(chosen, pool)
    rate = sum(fit.clips_per_s * pool[fit.gpu.name][1] for fit in chosen)
    hours = (request.num_clips / rate + START_S) / 3600
    words = []
    for fit in chosen:
        options = fits(request.network, fit.gpu, sum(n for _, n in pool.values()))
        words.append(
            f"{fit.gpu.name}: {fit.switches.words} at {fit.rows} clips a step is the fastest of "
            f"{len(options)} ways that fit"
        )
        if fit.switches.lora:
            words.append(
                f"all weights would need more memory than one {fit.gpu.name} has: more cards of it "
                "(ZeRO splits what they hold), or one of 40 GB"
            )
    return {
        "schema": SCHEMA,
        "work": "train",
        "model": request.model_name,
        "network": shape_of(request.network),
        "gpus": dict(request.gpus),
        "clips": request.num_clips,
        "memory": memory,
        "placement": placement,
        "settings": training_settings(chosen, pool),
        "clips_per_s": round(rate, 3),
        "hours": round(hours, 5),
        "start_s": START_S,
        "cost": _cost(request, catalogue, hours),
        "reasons": words,
        "alternatives": [],
        "sources": {
            "memory": f"computed from shapes and constants; these {fitted().training.source}",
            "clips_per_s": f"computed: {fitted().speed.training_share:.0%} of the product rate, at "
            f"least {1000 * fitted().speed.training_launch_s:.1f} ms a layer, as measured "
            "on an H200, scaled by data-sheet figures; perfect scaling assumed",
            "hours": f"computed: each clip once; {START_S} s of start-up included",
            "cost": f"public prices of the catalogue of {catalogue.date}",
        },
    }


def workload(request: Request) -> Workload:
    """What one clip of the request asks of a sampler."""
    return Workload(
        network=request.network,
        has_encoder=request.has_encoder,
        num_frames=max(20, round(30 * request.duration_s)),
        num_tokens=NUM_TOKENS,
        seeds=request.seeds,
        evaluations=text_evaluations(request.sampling),
        null_evaluations=null_evaluations(request.sampling),
        precision=request.precision,
    )


def _cost(request: Request, catalogue: Catalogue, hours: float) -> dict[str, Any]:
    """USD of the pool for `hours`, by the cheapest machines that have its cards."""
    total = 0.0
    rows: list[dict[str, Any]] = []
    for kind, number in request.gpus.items():
        machine = _machine(request, catalogue, kind)
        if machine is None:
            return {
                "usd": None,
                "usd_per_1000_clips": None,
                "machines": rows,
                "missing": f"no price of {kind}; give one with --price {kind}=USD",
            }
        machines = math.ceil(number / machine.num_gpus)
        usd = machines * machine.usd_per_hour * hours
        total += usd
        rows.append(
            {
                "gpu": kind,
                "machine": machine.name,
                "number": machines,
                "usd_per_hour": round(machine.usd_per_hour, 4),
                "usd": round(usd, 4),
                "source": machine.source,
            }
        )
    return {
        "usd": round(total, 4),
        "usd_per_1000_clips": round(1000 * total / request.num_clips, 4),
        "machines": rows,
    }


def _machine(request: Request, catalogue: Catalogue, kind: str) -> Machine | None:
    price = {k.lower(): v for k, v in request.prices.items()}.get(kind.lower())
    if price is not None:
        return Machine(
            name=f"your {kind}",
            provider="you",
            gpu=kind,
            num_gpus=1,
            usd_per_hour=price,
            source="as given",
        )
    found = catalogue.machines_with(kind, spot=request.spot)
    return found[0] if found else None


def _alternatives(request: Request, work: Workload, catalogue: Catalogue) -> list[dict[str, Any]]:
    """One row a machine: its clips a second when full, and what 1,000 clips cost there."""
    rows = []
    for kind, gpu in catalogue.gpus.items():
        for machine in catalogue.machines_with(kind, spot=request.spot):
            try:
                best = arrange({kind: (gpu, machine.num_gpus)}, work)[0]
            except ConfigError:
                continue
            rows.append(
                {
                    "machine": machine.name,
                    "gpu": f"{machine.num_gpus} x {kind}",
                    "encoder": best.reason,
                    "clips_per_s": round(best.clips_per_s, 2),
                    "usd_per_hour": round(machine.usd_per_hour, 3),
                    "usd_per_1000_clips": round(
                        1000 * machine.usd_per_hour / 3600 / best.clips_per_s, 3
                    ),
                }
            )
    return sorted(rows, key=lambda row: float(str(row["usd_per_1000_clips"])))
