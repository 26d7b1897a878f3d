"""The dated list of GPUs, rented machines and bought cards that plans are made from.

Prices and data-sheet figures are public and carry their source; none is measured here. A file of
the same form can be given instead, which is how a site plans with its own prices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from hymotion_ray.errors import ConfigError

SCHEMA = 1
_HOURS_A_YEAR = 8766


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One kind of card."""

    name: str
    memory_gb: float
    """Memory as the maker names it."""
    usable_gib: float
    """Memory as CUDA reports it, in units of 2^30 bytes."""
    capability: tuple[int, int]
    """CUDA compute capability."""
    tflops_16bit: float
    """Peak of dense 16-bit matrix products with fp32 sums."""
    bandwidth_gb_s: float
    """Memory bandwidth."""
    power_w: float
    """Board power."""
    source: str

    @property
    def memory_bytes(self) -> int:
        """Memory that programs can take."""
        return int(self.usable_gib * 2**30)

    @property
    def has_bfloat16(self) -> bool:
        """Whether its matrix units know bf16 (Ampere and later)."""
        return self.capability >= (8, 0)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A rented machine, or a bought card reckoned by the hour."""

    name: str
    provider: str
    gpu: str
    num_gpus: int
    usd_per_hour: float
    retired: str | None = None
    """Day since which it cannot be had any more."""
    source: str


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """What there is, as of `date`."""

    date: str
    gpus: Mapping[str, Gpu]
    machines: tuple[Machine, ...]
    """Rented ones at list prices, then bought cards at purchase over lifetime plus power."""
    spot_discounts: Mapping[str, float]
    """Share of the list price that a provider's spot machines cost less."""

    def gpu(self, name: str) -> Gpu:
        """The kind called `name`, in any case; `ConfigError` that names all kinds."""
        for known, gpu in self.gpus.items():
            if known.lower() == name.lower():
                return gpu
        raise ConfigError(
            f"GPU kind is {name!r}; allowed: {', '.join(self.gpus)}, or a kind of your own in a "
            "file given with --catalogue"
        )

    def kind_of(self, device_name: str, memory_bytes: int) -> Gpu | None:
        """The kind that devices call `device_name` (`NVIDIA A100-SXM4-80GB`); None if unknown.

        Of kinds of one name, the one nearest in memory.
        """
        found = [gpu for gpu in self.gpus.values() if _is_called(gpu, device_name)]
        # The longest name first: A100 is none of the A10s, and L40S no L4.
        return min(
            found,
            key=lambda gpu: (-len(_family(gpu)), abs(gpu.memory_bytes - memory_bytes)),
            default=None,
        )

    def machines_with(self, gpu: str, *, spot: bool = False) -> list[Machine]:
        """Machines of one GPU kind that can be had, cheapest by GPU first."""
        found = [m for m in self.machines if m.gpu == gpu and m.retired is None]
        if spot:
            found = [
                Machine(
                    name=f"{m.name} (spot)",
                    provider=m.provider,
                    gpu=m.gpu,
                    num_gpus=m.num_gpus,
                    usd_per_hour=m.usd_per_hour * (1 - self.spot_discounts[m.provider]),
                    source=f"{m.source}; the provider's usual spot discount",
                )
                for m in found
                if m.provider in self.spot_discounts
            ]
        return sorted(found, key=lambda m: m.usd_per_hour / m.num_gpus)


def _family(gpu: Gpu) -> str:
    """As devices say it: RTX 3080 for RTX3080-10G, A100 for A100-40."""
    return re.sub(r"^RTX(?=\d)", "RTX ", gpu.name.upper().split("-")[0])


def _is_called(gpu: Gpu, device_name: str) -> bool:
    word = rf"(?<![A-Z0-9]){re.escape(_family(gpu))}(?![A-Z0-9])"
    return re.search(word, device_name.upper()) is not None


def load_catalogue(text: str | None = None) -> Catalogue:
    """The packaged catalogue, or that of a JSON document of the same form.

    Raises `ConfigError` for another form or schema.
    """
    if text is None:
        text = files("hymotion_ray").joinpath("assets", "catalogue.json").read_text("utf-8")
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ConfigError(f"catalogue schema is {data['schema']!r}; allowed: {SCHEMA}")
        return _parse(data)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the catalogue cannot be read ({error!r:.200}); it must have the form of "
            "hymotion_ray/assets/catalogue.json"
        ) from error


def _parse(data: Mapping[str, Any]) -> Catalogue:
    gpus = {g["name"]: Gpu(**{**g, "capability": tuple(g["capability"])}) for g in data["gpus"]}
    rented = [Machine(**machine) for machine in data["machines"]]
    kwh = float(data["electricity_usd_per_kwh"]["value"])
    bought = [_bought(card, gpus[card["gpu"]], kwh) for card in data["cards"]]
    unknown = {m.gpu for m in rented} - set(gpus)
    if unknown:
        raise ConfigError(f"the catalogue's machines have GPUs it does not list: {unknown}")
    return Catalogue(
        date=data["date"],
        gpus=gpus,
        machines=(*rented, *bought),
        spot_discounts={d["provider"]: d["discount"] for d in data["spot_discounts"]},
    )


def _bought(card: Mapping[str, Any], gpu: Gpu, usd_per_kwh: float) -> Machine:
    """A card bought and run around the clock: purchase over its lifetime, and its power."""
    purchase = card["purchase_usd"] / (card["lifetime_years"] * _HOURS_A_YEAR)
    return Machine(
        name=f"own {gpu.name}",
        provider="own",
        gpu=gpu.name,
        num_gpus=1,
        usd_per_hour=round(purchase + gpu.power_w / 1000 * usd_per_kwh, 4),
        source=f"{card['source']} over {card['lifetime_years']} years, board power at "
        f"{usd_per_kwh} USD/kWh; the rest of the machine not counted",
    )
